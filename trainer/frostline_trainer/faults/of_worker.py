"""Carries out a job's `faults` in a worker, each once, at its (step, phase) (docs/faults.md).

`raise`, `tear` and `late_commit` raise RuntimeError in the training thread, like a failed collective: the process goes on as a
survivor. `oom` and `device_error` raise torch's errors of a GPU without memory and of a failed GPU. With `device_hang` the
device's work never ends, as seen by the fence (step/fence.py). The other kinds end, stop, block, slow down or cut off the worker.
The process that first creates `<run>/cluster/faults/<index>` carries a fault out, so it happens only once, even if another
process recomputes its step.
"""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import torch
from torch import nn

from frostline_contract.durable_files import create_durably
from frostline_contract.job import Job
from frostline_contract.job.cluster import FAULTS_OF_A_WORKER, FLIPS_OF_A_STEP, Fault
from frostline_contract.phases import IN_STEP, Phase
from frostline_contract.run_directory import RunDirectory
from frostline_trainer.families.base import learnable
from frostline_trainer.faults.flaw import Flaw, flip_first, flipped
from frostline_trainer.faults.partition import cut_off, is_cut_off, through_partition
from frostline_trainer.process.identity import Identity
from frostline_trainer.process.plug import Parts, Plug
from frostline_trainer.step.local_shards import part_of
from frostline_trainer.step.parts import parts_of
from frostline_trainer.step.phases import PhaseClock

if TYPE_CHECKING:
    from frostline_trainer.step.context import RunContext

log = logging.getLogger(__name__)

PLACES = {"tear": Phase.UPDATE, "late_commit": Phase.TALLY, "flip": Phase.COMMITTED, "device_hang": Phase.LOAD}
"""Kinds with a phase of their own. UPDATE: a part of a unit is written."""
HALF_WRITTEN = "rename"
"""The file operation at which a file has its content and not yet its name; other files of the checkpoint may exist or not."""
SLOW_STEPS = 20


@dataclass(frozen=True)
class Progress:
    """The training thread's progress.

    committed: last committed step. generation: the one that runs or is being entered; "" for none. torn: pieces of its plan that
    are not intact here.
    """

    committed: int
    lineage: int
    generation: str
    torn: tuple[int, ...] = ()


@dataclass
class _Slow:
    """A planned slowness. left: steps still to be slowed down."""

    phase: str
    seconds: float
    left: int = SLOW_STEPS
    step: int = 0


class FaultPlan:
    """The faults that this worker may still suffer. Its training thread calls `enter`, its checkpoint writer `before_file`.

    flip: called with (fault, step) to change a bit; set as soon as the worker has a model. hang: called to stop its device.
    """

    def __init__(self, faults: dict[int, Fault], identity: Identity, progress: Callable[[], Progress]) -> None:
        """Arm the planned faults that may hit this worker.

        faults: by index in the job's `faults`. progress: called in the thread that a fault may hit.
        """
        self._identity, self._progress = identity, progress
        self._folder = RunDirectory(identity.run_dir).faults
        self._in_files = {index: fault for index, fault in faults.items() if fault.kind == "kill_in_checkpoint"}
        self._in_phases = {index: fault for index, fault in faults.items() if fault.kind != "kill_in_checkpoint"}
        self._slow: list[_Slow] = []
        self.flip: Callable[[Fault, int], None] | None = None
        self.hang: Callable[[], None] | None = None

    @staticmethod
    def of(job: Job, identity: Identity, progress: Callable[[], Progress]) -> "FaultPlan":
        """The faults that the job plans for this worker's pod."""
        mine = {
            index: fault
            for index, fault in enumerate(job.faults)
            if fault.kind in FAULTS_OF_A_WORKER and fault.worker == identity.ordinal
        }
        return FaultPlan(mine, identity, progress)

    def watch(self, clock: PhaseClock) -> None:
        """Let the clock call `enter` at each phase, if there are planned faults at phases."""
        if self._in_phases:
            clock.hook = self.enter

    def enter(self, phase: str) -> None:
        """Carry out the faults that are due when the training thread enters `phase`. Some raise RuntimeError or a subclass."""
        if self._slow:
            self._slow_down(phase)
        for index, fault in list(self._in_phases.items()):
            if _place_of(fault) != phase:
                continue
            progress = self._progress()
            step = _step(progress, phase)
            if step < fault.step:
                continue
            del self._in_phases[index]
            if self._claim(index, fault, phase, step, progress):
                self._happen(index, fault, phase, step)

    def before_file(self, operation: str, step: int) -> None:
        """Carry out faults that are due before this operation on a file of the checkpoint of `step`."""
        if operation != HALF_WRITTEN:
            return
        for index, fault in list(self._in_files.items()):
            if step >= fault.step:
                del self._in_files[index]
                if self._claim(index, fault, Phase.CHECKPOINT, step, self._progress()):
                    os.kill(os.getpid(), signal.SIGKILL)

    def _claim(self, index: int, fault: Fault, phase: str, step: int, progress: Progress) -> bool:
        """Whether this process is to carry the fault out. The fault's record is on disk before it happens."""
        said = {
            "index": index,
            "kind": fault.kind,
            "worker_ids": [self._identity.worker_id],
            "pods": [self._identity.pod_name],
            "step": step,
            "phase": phase,
            "generation": progress.generation,
            "lineage": progress.lineage,
            "pieces": list(progress.torn),
            "time_seconds": time.time(),
        }
        claimed = create_durably(self._folder / str(index), json.dumps(said))
        if claimed:
            log.warning("planned fault %d: %s at step %d in %s", index, fault.kind, step, phase)
        return claimed

    def _happen(self, index: int, fault: Fault, phase: str, step: int) -> None:
        if fault.kind == "kill_worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind == "deadlock":
            threading.Event().wait()
        elif fault.kind == "slow":
            self._slow.append(_Slow(phase, fault.seconds))
            self._slow_down(phase)
        elif fault.kind == "flip":
            assert self.flip is not None, "a bit is to flip before the worker has anything"
            self.flip(fault, step)
        elif fault.kind == "device_error":
            raise torch.AcceleratorError(f"CUDA error: planned fault {index}: {fault.kind} at step {step} in {phase}")
        elif fault.kind == "oom":
            raise torch.OutOfMemoryError(f"CUDA out of memory: planned fault {index} at step {step} in {phase}")
        elif fault.kind == "device_hang":
            assert self.hang is not None, "a device is to hang before the worker has one"
            self.hang()
        elif fault.kind == "cut":
            cut_off(fault.seconds)
        else:
            raise RuntimeError(f"planned fault {index}: {fault.kind} at step {step} in {phase}")

    def _slow_down(self, phase: str) -> None:
        """Slow the worker down once a step, for SLOW_STEPS steps."""
        for slow in list(self._slow):
            step = _step(self._progress(), phase)
            if slow.phase == phase and step > slow.step:
                slow.step, slow.left = step, slow.left - 1
                time.sleep(slow.seconds)
            if slow.left == 0:
                self._slow.remove(slow)


class _Stopped:
    """The clock of a device that hangs, and each of its marks."""

    runs_behind = True

    def mark(self) -> "_Stopped":
        return self

    def query(self) -> bool:
        return False

    def seconds(self, start: object, end: object) -> float:
        return 0.0


def hang_device(context: "RunContext") -> None:
    """Let the device's work never end from now on; also a CPU's."""
    context.device_clock = _Stopped()


class PlannedFaults(Plug):
    """Carries out the faults that a worker's job plans for its pod."""

    def __init__(self) -> None:
        self._flaw = Flaw()
        self._plan: FaultPlan | None = None
        self._flip_stored_in = 0

    def attach(self, parts: Parts) -> None:
        self._parts = parts
        self._plan = FaultPlan.of(parts.job, parts.identity, self._progress)
        self._plan.hang, self._plan.flip = lambda: hang_device(parts.context), self._flip
        self._plan.watch(parts.clock)

    def channel(self, channel: grpc.Channel) -> grpc.Channel:
        return through_partition(channel)

    def silences(self, env: Mapping[str, str]) -> bool:
        return is_cut_off(env.get("FROSTLINE_CUT", ""))

    def before_file(self, operation: str, step: int) -> None:
        if self._plan is not None:
            self._plan.before_file(operation, step)

    def activation(self, output: torch.Tensor) -> torch.Tensor:
        return self._flaw.activation(output)

    def gradient(self, parameters: list[nn.Parameter]) -> None:
        self._flaw.gradient(parameters)

    def end_of_schedule(self) -> None:
        self._flaw.end_of_schedule()

    def rows_to_store(self, rows: torch.Tensor) -> torch.Tensor:
        return flipped(rows) if self._flip_stored_in and self._parts.state.step < self._flip_stored_in else rows

    def _progress(self) -> Progress:
        parts, plan = self._parts, self._parts.plans.running
        needed = plan.needs(parts.identity.worker_id) if plan is not None else []
        torn = tuple(piece for piece in needed if parts.context.holdings.state(piece) is None)
        return Progress(parts.state.step, parts.state.lineage, str(plan.generation) if plan is not None else "", torn)

    def _flip(self, fault: Fault, step: int) -> None:
        """Flip bits: in the worker's own pieces of its last unit; or, for `cached_value`, in all values that it stores in the
        cache in `step`; or in its computations in `step` and, if the fault is lasting, ever after.
        """
        if fault.what == "cached_value":
            self._flip_stored_in = step
        elif fault.what in ("activation", "gradient"):
            self._flaw.what, self._flaw.lasting = fault.what, fault.lasting
        else:
            context, plan = self._parts.context, self._parts.plans.running
            assert plan is not None
            table, owned = plan.pieces, plan.pieces_of(self._parts.identity.worker_id)
            module = context.cut.units[table.unit_of(owned[-1])]
            learns, last = learnable(module), table.of_unit(table.unit_of(owned[-1]))
            parts = [(one, part) for one in owned if one in last for part in parts_of(table, one, module)]
            piece, part = next((one, part) for one, part in parts if part.name in learns)
            moments = context.moments.get((piece, part.name), {})
            weight = part_of(module, piece, part, learns[part.name])[0][:1]
            flip_first(weight if fault.what == "weight" else next(one for one in moments.values() if one.ndim > 0))


def _place_of(fault: Fault) -> str:
    """The phase in which a fault happens. Computations are changed before the step's schedule."""
    return Phase.LOAD if fault.kind == "flip" and fault.what in FLIPS_OF_A_STEP else PLACES.get(fault.kind, fault.phase)


def _step(progress: Progress, phase: str) -> int:
    """The step of a fault in `phase`: the one being computed, or the last committed one if none is."""
    return progress.committed + (phase in IN_STEP)
