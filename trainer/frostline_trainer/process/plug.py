"""The one place where something from outside may watch and change a worker: planned faults do (docs/faults.md).

FROSTLINE_PLUG names a module with a function `plug()`; without it nothing is plugged in, and every method does nothing. No module
of the trainer imports one that plugs itself in.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frostline_contract.job import Job

if TYPE_CHECKING:
    import grpc
    from torch import Tensor, nn

    from frostline_trainer.generations.plan_table import PlanTable
    from frostline_trainer.process.identity import Identity
    from frostline_trainer.step.context import RunContext
    from frostline_trainer.step.phases import PhaseClock
    from frostline_trainer.step.run_state import RunState

PLUG = "FROSTLINE_PLUG"
PLANNED_FAULTS = "frostline_trainer.faults"
"""Carries out what a job's `faults` plan for a worker."""


@dataclass(frozen=True)
class Parts:
    """What a worker consists of when it knows its job, data and model, and has not registered yet."""

    identity: "Identity"
    job: Job
    context: "RunContext"
    state: "RunState"
    plans: "PlanTable"
    clock: "PhaseClock"


class Plug:
    """What a worker lets a plug do. This one does nothing."""

    def attach(self, parts: Parts) -> None:
        """The worker begins; called once, before it registers."""

    def channel(self, channel: "grpc.Channel") -> "grpc.Channel":
        """The channel to the controller, as this process is to use it."""
        return channel

    def silences(self, env: Mapping[str, str]) -> bool:
        """Whether no word may leave a pod with this environment now, not even of its end."""
        return False

    def before_file(self, operation: str, step: int) -> None:
        """The checkpoint writer is about to do this to a file of the checkpoint of `step`; called in its thread."""

    def activation(self, output: "Tensor") -> "Tensor":
        """What a stage gives on after a forward."""
        return output

    def gradient(self, parameters: "list[nn.Parameter]") -> None:
        """The `.grad`s of a stage after the backward of one micro-batch."""

    def end_of_schedule(self) -> None:
        """All computations of a step are done."""

    def rows_to_store(self, rows: "Tensor") -> "Tensor":
        """Boundary activations, one a sample, on their way into the cache."""
        return rows


def plug_of(env: Mapping[str, str], job: Job | None = None) -> Plug:
    """What is plugged into a process with this environment: the module that FROSTLINE_PLUG names.

    Where it names none, and the job plans faults, theirs: on a cluster nobody sets the variable.
    Raises ValueError where there is no such module.
    """
    name = env.get(PLUG, "") or (PLANNED_FAULTS if job is not None and job.faults else "")
    if not name:
        return Plug()
    try:
        module: Any = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise ValueError(f"{PLUG} names {name!r}, and {missing}; install it where the workers run, or unset {PLUG}") from missing
    return module.plug()
