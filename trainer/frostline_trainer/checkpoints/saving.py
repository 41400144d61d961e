"""This worker's share of checkpoints: which units it writes, when they may be published, and how state comes back from one."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from frostline_contract.epochs import checkpoint_path
from frostline_contract.job import Job
from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints.reading import complete_checkpoints, is_complete
from frostline_trainer.checkpoints.restoring import restore_pieces
from frostline_trainer.checkpoints.retention import Retention, sweep
from frostline_trainer.checkpoints.writing import CheckpointWriter, Snapshot, WriterNotices
from frostline_trainer.control.client import ControlClient
from frostline_trainer.generations.entering import Entered
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import tied_names
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import UnitState, export_piece

log = logging.getLogger(__name__)
RESTORE_WAIT_SECONDS = 60.0
MOVED_SECONDS = 0.2
UNWRITTEN_BYTES = 256 << 20
"""Copies that may wait for the disk in host memory, of one worker: so much, or two shares where two are more."""
SHARE_WAIT_SECONDS = 60.0
"""How long a freeze waits for the checkpoint that it may be rolled back to; a disk that is slower than that is not waited for."""
PATIENCE_SECONDS = 3600.0
"""How long a run that has nothing else left to do waits for the disk that its last checkpoint and its model go to."""
STALLED_SECONDS = 30.0
"""After which a file operation that has not returned is told of."""


class Saving:
    """Writes and reads checkpoints of the run's pieces.

    on_fenced(run_epoch): in the writer's thread, once an epoch: it has begun, worlds of older ones publish nothing more.
    before(operation, step): in the writer's thread, ahead of every file operation of the checkpoint of `step`.
    """

    def __init__(
        self,
        context: RunContext,
        root: Path,
        client: ControlClient,
        on_fenced: Callable[[int], None] = lambda run_epoch: None,
        before: Callable[[str, int], None] = lambda operation, step: None,
    ) -> None:
        self._context, self.root, self._client = context, root, client
        notices = WriterNotices(self._published, self._trouble, on_fenced, before)
        self._writer = CheckpointWriter(self._retention(context.job), notices)
        self._waiting: list[Snapshot] = []
        self._newest: Snapshot | None = None
        self._told_last = ""
        self._unwritten: list[Snapshot] = []
        self._leaving_out = False

    def follow(self, job: Job) -> None:
        """Keep as many as another revision of the job says."""
        self._writer.retention = self._retention(job)

    def _retention(self, job: Job) -> Retention:
        return Retention(job.checkpoint.keep_last, _watch_steps(job, self._context.order(1).steps_per_epoch))

    def checkpoint(self, entered: Entered, state: RunState, before_freeze: bool, last: bool = False) -> Path:
        """Copy this member's share at a commit point and hand it to the background writer. Returns the checkpoint's folder.

        before_freeze: the guard may come back to it, whoever dies meanwhile: returns when the share is on disk. last: the run
        ends with it.
        """
        plan = entered.plan
        # A rollback in place begins a lineage in the same generation, whose steps have the old ones' numbers and other bits.
        lineage = "" if state.lineage == plan.lineage else f"-lineage-{state.lineage}"
        folder = self.root / checkpoint_path(plan.run_epoch, f"{plan.generation}{lineage}", state.step)
        if self._newest is None or self._newest.folder != folder:
            if before_freeze and self.is_behind(entered):
                self._unwritten[0].written.wait(SHARE_WAIT_SECONDS)
            own = self._share(entered)
            copies, copied = self._context.copies.of(own)
            self._newest = Snapshot(
                folder,
                copies,
                tied_names(self._context),
                self._context.pieces,
                plan.generation,
                self._manifest(entered, state, before_freeze),
                publishes=entered.index == 0,
                base=plan.base if plan.start == "continue" else None,
                last=last,
                copied=copied,
                size=_bytes_of(own),
            )
            self._leaving_out = False
            self._waiting.append(self._newest)
            self._unwritten.append(self._newest)
            self._writer.write(self._newest)
        self._newest.last |= last
        if before_freeze and not self._newest.written.wait(SHARE_WAIT_SECONDS):
            log.warning("checkpoint %s is not on disk after %.0f s; training goes on", folder, SHARE_WAIT_SECONDS)
        return folder

    def is_behind(self, entered: Entered) -> bool:
        """Whether one more share would be more than this member's host memory is to hold for a disk that is slower."""
        self._unwritten = [one for one in self._unwritten if not one.written.is_set()]
        share = _bytes_of(self._share(entered))
        return sum(one.size for one in self._unwritten) + share > max(UNWRITTEN_BYTES, 2 * share)

    def leave_out(self, step: int, members: list[int]) -> None:
        """All members together take no checkpoint of `step`: these are behind. Told once, until one is taken again."""
        if self._leaving_out:
            return
        self._leaving_out = True
        self._trouble(step, f"members {members} still write those before that of step {step}: the disk is slower than they come")

    def _share(self, entered: Entered) -> dict[int, UnitState]:
        """The pieces that this member writes, by reference."""
        context, generation = self._context, entered.generation
        plan, table, worker = entered.plan, context.pieces, generation.worker_id
        own = [piece for piece in plan.pieces_of(worker) if dealt_to(piece, plan.owners(piece)) == worker]
        return {piece: export_piece(table, piece, context.cut.units[table.unit_of(piece)], context.moments) for piece in own}

    def stable(self) -> None:
        """A vote has passed since the copies were taken: they may be published."""
        for snapshot in self._waiting:
            snapshot.stable.set()
        self._waiting.clear()

    def abandon(self, seen_step: int = -1) -> None:
        """The generation has failed: what is stable and whole is published by whoever is left, the rest given up. Does not wait.

        seen_step: the step of the newest vote that this member has seen.
        """
        self._waiting.clear()
        self._newest = None
        self._writer.abandon(seen_step)

    def restore(self, entered: Entered, step: int, state: RunState) -> RunState:
        """Bring this member's pieces back to the checkpoint of `step` on `state`'s history. Returns the run state it holds."""
        folder, manifest = self._await_checkpoint(step, state)
        needed = entered.plan.needs(entered.generation.worker_id)
        restore_pieces(self._context, self._context.moments, folder, manifest, needed)
        return RunState.model_validate(manifest.get("state"))

    def wait_for_share(self, folder: Path, moved: Callable[[], None] = lambda: None) -> str:
        """Wait until this member's share of the newest checkpoint is on disk. Returns why it cannot be, empty where it is.

        moved: called as often as the writer has come further, and for as long as a disk that stands still is waited for.
        """
        if self._newest is not None and self._newest.folder == folder:
            self._await(self._newest.written, moved)
        return self.why_not_written(folder)

    def finish(self, moved: Callable[[], None] = lambda: None) -> None:
        """At the end: wait until everything is written and published, or given up; what others left unfinished is removed."""
        self._await(self._writer.finishing(), moved)
        newest = self._newest
        if newest is None or not newest.publishes or not is_complete(newest.folder):
            return
        try:
            sweep(newest.folder, None, set(), lambda operation: None)
        except OSError as error:
            log.warning("unfinished checkpoints under %s not removed: %s", self.root, error)

    def _await(self, done: threading.Event, moved: Callable[[], None]) -> None:
        """Wait for the writer. A stalled disk is no hung worker: another one would stall at it as well."""
        operations, since = self._writer.operations, time.monotonic()
        while not done.wait(MOVED_SECONDS):
            stood = time.monotonic() - since
            if self._writer.operations != operations:
                operations, since = self._writer.operations, time.monotonic()
            elif stood > PATIENCE_SECONDS:
                continue
            elif stood > STALLED_SECONDS and self._newest is not None and self._newest.last:
                self.tell_last(self._newest.manifest["step"], f"no answer from the disk for {STALLED_SECONDS:g} s")
            moved()

    def close(self) -> None:
        """Finish for good."""
        self._writer.close()

    def why_not_written(self, folder: Path) -> str:
        """What kept this member's share of a checkpoint from being written; empty where nothing did."""
        return self._writer.not_written.get(folder, "")

    def _await_checkpoint(self, step: int, state: RunState) -> tuple[Path, dict]:
        deadline = time.monotonic() + RESTORE_WAIT_SECONDS
        oldest = _lineage_before_freeze(state, step)
        while True:
            found = [item for item in complete_checkpoints(self.root) if item[1]["step"] == step]
            found = [item for item in found if oldest <= item[1]["lineage"] <= state.lineage]
            if found:
                return found[-1]
            if time.monotonic() > deadline:
                raise ValueError(f"no complete checkpoint of step {step} under {self.root} to roll back to")
            time.sleep(0.05)

    def _manifest(self, entered: Entered, state: RunState, before_freeze: bool) -> dict:
        context = self._context
        return {
            "run_epoch": entered.plan.run_epoch,
            "lineage": state.lineage,
            "generation": str(entered.plan.generation),
            "step": state.step,
            "freeze_point": state.freeze_point,
            "before_freeze": before_freeze,
            "guard_loss": state.best_guard_loss,
            "probe_digest": context.probe_digest,
            "dataset_digest": context.data.digest,
            "num_units": context.num_units,
            "state": state.dump(),
        }

    def _published(self, folder: Path, manifest: dict, seconds: float) -> None:
        reason = f"{folder.relative_to(self.root)}{' (before a freeze)' if manifest['before_freeze'] else ''}"
        self._client.add_event(
            control_pb2.RunEvent(
                kind="checkpoint", step=manifest["step"], lineage=manifest["lineage"], reason=reason, seconds=seconds
            )
        )

    def tell_last(self, step: int, reason: str) -> None:
        """What keeps the run's last files from being written: an event and a line in the log, once for each reason."""
        if reason != self._told_last:
            self._told_last = reason
            text = (
                f"trained to step {step}, and its weights cannot be written ({reason}); waiting for up to "
                f"{PATIENCE_SECONDS / 60:g} minutes, free some space under {self.root}"
            )
            log.warning("%s", text)
            self._client.add_event(control_pb2.RunEvent(kind="checkpoint_failed", step=step, reason=text))

    def _trouble(self, step: int, reason: str) -> None:
        if self._newest is not None and self._newest.last:
            self.tell_last(step, reason)
            return
        text = f"checkpoints cannot be written ({reason}); training goes on, free some space under {self.root}"
        self._client.add_event(control_pb2.RunEvent(kind="checkpoint_failed", step=step, reason=text))


def _watch_steps(job: Job, steps_per_epoch: int) -> int:
    """Steps after which no freeze can be rolled back any more: the guard's readings, and some that were given up."""
    readings = (job.freeze.rails.guard_intervals + 3) * max(job.evaluation.every_intervals, 1)
    return readings * job.interval_steps(steps_per_epoch) + job.decisions.lag_steps


def _lineage_before_freeze(state: RunState, step: int) -> int:
    """The lineage in which the freeze after `step` was decided: an older one's checkpoint of that step is of a history undone."""
    freezes = [one for one in state.decisions if one.effective_step == step + 1 and one.kind == "freeze" and not one.void]
    return max((one.lineage for one in freezes), default=0)


def dealt_to(piece: int, owners: Sequence[str]) -> str:
    """Which of a piece's owners writes it into checkpoints: they take turns."""
    return owners[piece % len(owners)]


def _bytes_of(share: dict[int, UnitState]) -> int:
    return sum(tensor.numel() * tensor.element_size() for state in share.values() for tensor in state.values())
