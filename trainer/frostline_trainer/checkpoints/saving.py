"""A worker's share of checkpoints: the pieces that it writes, when a checkpoint may be published, and restores."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from frostline_contract.epochs import checkpoint_path
from frostline_contract.job import Job
from frostline_contract.lineage import Place, is_before_freeze
from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints.reading import complete_checkpoints, is_complete
from frostline_trainer.checkpoints.restoring import restore_pieces
from frostline_trainer.checkpoints.retention import Retention, sweep
from frostline_trainer.checkpoints.writing import CheckpointWriter, Snapshot, WriterNotices
from frostline_trainer.control.client import ControlClient
from frostline_trainer.generations.entering import Entered
from frostline_trainer.replication.wrong_bits import CheckpointMissing
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import tied_names
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import UnitState, export_piece

log = logging.getLogger(__name__)
RESTORE_WAIT_SECONDS = 60.0
MOVED_SECONDS = 0.2
UNWRITTEN_BYTES = 256 << 20
"""Limit of one worker's copies in host memory that wait for the disk; at least two shares are allowed."""
SHARE_WAIT_SECONDS = 60.0
"""How long a freeze waits for the checkpoint to which it may be rolled back; with a slower disk it goes on without."""
PATIENCE_SECONDS = 3600.0
"""How long a run waits at its end for the disk of its last checkpoint and its model."""
STALLED_SECONDS = 30.0
"""Time after which a file operation that has not returned is reported."""


class Saving:
    """Writes and reads checkpoints of the run's pieces.

    on_fenced: called with a run epoch in the writer's thread, once for each that has begun; older ones publish nothing more.
    before: called with (operation, step) in the writer's thread before every file operation of the checkpoint of `step`.
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
        self._reported_last = ""
        self._unwritten: list[Snapshot] = []
        self._leaving_out = False

    def follow(self, job: Job) -> None:
        """Follow another revision of the job, with its `checkpoint.keep_last`."""
        self._writer.retention = self._retention(job)

    def _retention(self, job: Job) -> Retention:
        return Retention(job.checkpoint.keep_last, _watch_steps(job, self._context.order(1).steps_per_epoch))

    def checkpoint(self, entered: Entered, state: RunState, before_freeze: bool, last: bool = False) -> Path:
        """Copy this member's share at a commit point and pass it to the background writer. Returns the checkpoint's folder.

        before_freeze: wait until the share is on disk, since the guard may roll back to it even after a failure. last: the
        checkpoint is the run's last.
        """
        plan, moved = entered.plan, entered.generation.moved
        # After a rollback the same generation has a new lineage, whose steps have the same numbers as old ones and other bits.
        lineage = "" if state.lineage == plan.lineage else f"-lineage-{state.lineage}"
        folder = self.root / checkpoint_path(plan.run_epoch, f"{plan.generation}{lineage}", state.step)
        if self._newest is None or self._newest.folder != folder:
            if before_freeze and self.is_behind(entered):
                self._await(self._unwritten[0].written, moved, SHARE_WAIT_SECONDS)
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
        elif before_freeze and not self._newest.stable.is_set():  # the step's own checkpoint, which is not published yet
            self._newest.manifest["before_freeze"] = True
        self._newest.last |= last
        if before_freeze and not self._await(self._newest.written, moved, SHARE_WAIT_SECONDS):
            log.warning("checkpoint %s is not on disk after %.0f s; training goes on", folder, SHARE_WAIT_SECONDS)
        return folder

    def is_behind(self, entered: Entered) -> bool:
        """Whether one more share would exceed the limit of copies that wait for a slow disk."""
        self._unwritten = [one for one in self._unwritten if not one.written.is_set()]
        share = _bytes_of(self._share(entered))
        return sum(one.size for one in self._unwritten) + share > max(UNWRITTEN_BYTES, 2 * share)

    def leave_out(self, step: int, members: list[int]) -> None:
        """Note that all members skip the checkpoint of `step`, since these are behind. Reported once until one is taken."""
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
        """Mark the copies taken so far as stable, after a later vote: they may be published."""
        for snapshot in self._waiting:
            snapshot.stable.set()
        self._waiting.clear()

    def abandon(self, seen_step: int = -1) -> None:
        """Abandon a failed generation: remaining members publish complete, stable checkpoints, and drop others. Does not wait.

        seen_step: the step of the newest vote that this member has seen.
        """
        self._waiting.clear()
        self._newest = None
        self._writer.abandon(seen_step)

    def restore(self, entered: Entered, step: int, state: RunState) -> RunState:
        """Bring this member's pieces back to the checkpoint of `step` on `state`'s history. Returns the run state it holds.

        Raises CheckpointMissing if no complete one appears within RESTORE_WAIT_SECONDS.
        """
        folder, manifest = self._await_checkpoint(step, state)
        needed = entered.plan.needs(entered.generation.worker_id)
        restore_pieces(self._context, self._context.moments, folder, manifest, needed)
        return RunState.model_validate(manifest.get("state"))

    def wait_for_share(self, folder: Path, moved: Callable[[], None] = lambda: None) -> str:
        """Wait until this member's share of the newest checkpoint is on disk. Returns why it cannot be; empty if it is.

        moved: called whenever the writer makes progress, and regularly while a stalled disk is waited for.
        """
        if self._newest is not None and self._newest.folder == folder:
            self._await(self._newest.written, moved)
        return self.why_not_written(folder)

    def finish(self, moved: Callable[[], None] = lambda: None) -> None:
        """Wait, at the end, until all checkpoints are published or given up; then remove unfinished ones of other writers."""
        self._await(self._writer.finishing(), moved)
        newest = self._newest
        if newest is None or not newest.publishes or not is_complete(newest.folder):
            return
        try:
            sweep(newest.folder, None, set(), lambda operation: None)
        except OSError as error:
            log.warning("unfinished checkpoints under %s not removed: %s", self.root, error)

    def _await(self, done: threading.Event, moved: Callable[[], None], seconds: float = math.inf) -> bool:
        """Wait for the writer, for `seconds` at most. Returns whether it is done.

        A stalled disk does not count as a hang: another worker would stall as well.
        """
        operations, since = self._writer.operations, time.monotonic()
        until = since + seconds
        while not done.wait(min(MOVED_SECONDS, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
            stood = time.monotonic() - since
            if self._writer.operations != operations:
                operations, since = self._writer.operations, time.monotonic()
            elif stood > PATIENCE_SECONDS:
                continue
            elif stood > STALLED_SECONDS and self._newest is not None and self._newest.last:
                self.report_last(self._newest.manifest["step"], f"no answer from the disk for {STALLED_SECONDS:g} s")
            moved()
        return True

    def close(self) -> None:
        """Finish, and end the writer's thread."""
        self._writer.close()

    def why_not_written(self, folder: Path) -> str:
        """Why this member's share of a checkpoint could not be written; empty if it was."""
        return self._writer.not_written.get(folder, "")

    def _await_checkpoint(self, step: int, state: RunState) -> tuple[Path, dict]:
        deadline = time.monotonic() + RESTORE_WAIT_SECONDS
        while True:
            found = [item for item in complete_checkpoints(self.root) if item[1]["step"] == step]
            found = [item for item in found if is_before_freeze(Place(item[1]["lineage"], step), state.lineage, state.decisions)]
            if found:
                return found[-1]
            if time.monotonic() > deadline:
                raise CheckpointMissing(step, self.root)
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

    def report_last(self, step: int, reason: str) -> None:
        """Report why the run's last files cannot be written: an event and a line in the log, once for each reason."""
        if reason != self._reported_last:
            self._reported_last = reason
            text = (
                f"trained to step {step}, and its weights cannot be written ({reason}); waiting for up to "
                f"{PATIENCE_SECONDS / 60:g} minutes, free some space under {self.root}"
            )
            log.warning("%s", text)
            self._client.add_event(control_pb2.RunEvent(kind="checkpoint_failed", step=step, reason=text))

    def _trouble(self, step: int, reason: str) -> None:
        if self._newest is not None and self._newest.last:
            self.report_last(step, reason)
            return
        text = f"checkpoints cannot be written ({reason}); training goes on, free some space under {self.root}"
        self._client.add_event(control_pb2.RunEvent(kind="checkpoint_failed", step=step, reason=text))


def _watch_steps(job: Job, steps_per_epoch: int) -> int:
    """Steps after a freeze until it cannot be rolled back any more: for the guard's readings, and some that were given up."""
    readings = (job.freeze.rails.guard_intervals + 3) * max(job.evaluation.every_intervals, 1)
    return readings * job.interval_steps(steps_per_epoch) + job.decisions.lag_steps


def dealt_to(piece: int, owners: Sequence[str]) -> str:
    """The owner that writes a piece into checkpoints: owners take turns by piece."""
    return owners[piece % len(owners)]


def _bytes_of(share: dict[int, UnitState]) -> int:
    return sum(tensor.numel() * tensor.element_size() for state in share.values() for tensor in state.values())
