"""This worker's share of checkpoints: which units it writes, when they may be published, and how state comes back from one."""

import logging
import threading
import time
from pathlib import Path

from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints import CheckpointWriter, Snapshot, complete_checkpoints, load_unit
from frostline_trainer.control_client import ControlClient
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.unit_state import UnitState, export_unit, import_unit
from frostline_trainer.entering import Entered
from frostline_trainer.finishing import tied_names
from frostline_trainer.run_state import RunState

log = logging.getLogger(__name__)
RUN_EPOCH = "0"
"""Changed only where a world may still run that nobody can reach (PROTOCOLS 5); the failure issue raises it."""
RESTORE_WAIT_SECONDS = 60.0


class Saving:
    """Writes and reads checkpoints of the run's units."""

    def __init__(self, context: RunContext, root: Path, client: ControlClient) -> None:
        self._context, self.root, self._client = context, root, client
        self._writer = CheckpointWriter(context.job.checkpoint.keep_last, self._published)
        self._waiting: list[threading.Event] = []
        self._taken: set[Path] = set()
        self._started: dict[Path, float] = {}

    def checkpoint(self, entered: Entered, state: RunState, before_freeze: bool) -> Path:
        """Copy this member's share at a commit point and hand it to the background writer. Returns the checkpoint's folder."""
        generation, plan = entered.generation, entered.plan
        # A rollback in place begins a lineage in the same generation, whose steps have the old ones' numbers and other bits.
        lineage = "" if state.lineage == plan.lineage else f"-lineage-{state.lineage}"
        folder = self.root / RUN_EPOCH / f"{plan.generation}{lineage}" / str(state.step)
        if folder in self._taken:
            return folder
        self._taken.add(folder)
        self._started[folder] = time.perf_counter()
        own = [unit for unit in self._held(entered) if unit % generation.shape.dp_degree == generation.dp_rank]
        units = {unit: _copied(export_unit(unit, self._context.cut.units[unit], self._context.moments)) for unit in own}
        manifest = self._manifest(entered, state, before_freeze) if entered.index == 0 else None
        stable = threading.Event()
        self._waiting.append(stable)
        self._writer.write(Snapshot(folder, units, tied_names(self._context), self._context.num_units, manifest, stable))
        return folder

    def stable(self) -> None:
        """A vote has passed since the copies were taken: they may be published."""
        for event in self._waiting:
            event.set()
        self._waiting.clear()

    def restore(self, entered: Entered, step: int) -> RunState:
        """Bring this member's units back to the newest complete checkpoint of `step`. Returns the run state it holds."""
        folder, manifest = self._await_checkpoint(step)
        for unit in entered.plan.needs(entered.generation.worker_id):
            import_unit(unit, self._context.cut.units[unit], self._context.moments, load_unit(folder, manifest, unit))
        return RunState.model_validate(manifest["state"])

    def finish(self) -> None:
        self._writer.finish()

    def why_not_written(self, folder: Path) -> str:
        """What kept this member's share of a checkpoint from being written; empty where nothing did."""
        return self._writer.not_written.get(folder, "")

    def _held(self, entered: Entered) -> list[int]:
        shape = entered.generation.shape
        stages = shape.stages_of(entered.generation.pp_rank)
        return [unit for stage in stages for unit in entered.plan.placement.units_of_stage(stage)]

    def _await_checkpoint(self, step: int) -> tuple[Path, dict]:
        deadline = time.monotonic() + RESTORE_WAIT_SECONDS
        while True:
            found = [item for item in complete_checkpoints(self.root) if item[1]["step"] == step]
            if found:
                return found[-1]
            if time.monotonic() > deadline:
                raise ValueError(f"no complete checkpoint of step {step} under {self.root} to roll back to")
            time.sleep(0.05)

    def _manifest(self, entered: Entered, state: RunState, before_freeze: bool) -> dict:
        context = self._context
        return {
            "run_epoch": RUN_EPOCH,
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

    def _published(self, folder: Path, manifest: dict) -> None:
        seconds = time.perf_counter() - self._started.pop(folder, time.perf_counter())
        reason = f"{folder.relative_to(self.root)}{' (before a freeze)' if manifest['before_freeze'] else ''}"
        self._client.add_event(
            control_pb2.RunEvent(
                kind="checkpoint", step=manifest["step"], lineage=manifest["lineage"], reason=reason, seconds=seconds
            )
        )


def _copied(state: UnitState) -> UnitState:
    return {key: tensor.detach().to("cpu", copy=True) for key, tensor in state.items()}
