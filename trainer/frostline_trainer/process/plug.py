"""The plug: the only hook by which code from outside may watch and change a worker, as planned faults do (docs/faults.md).

FROSTLINE_PLUG names a module with a function `plug()`, which returns a Plug. Without it, the default Plug does nothing. No module
of the trainer imports a plug's module by itself.
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
"""The plug that carries out a job's planned `faults`."""


@dataclass(frozen=True)
class Parts:
    """A worker's parts at the time when it has built its job, data and model, and has not registered yet."""

    identity: "Identity"
    job: Job
    context: "RunContext"
    state: "RunState"
    plans: "PlanTable"
    clock: "PhaseClock"


class Plug:
    """The interface of plugs, with methods that do nothing."""

    def attach(self, parts: Parts) -> None:
        """Attach to a worker; called once, before it registers."""

    def channel(self, channel: "grpc.Channel") -> "grpc.Channel":
        """The channel to the controller that this process uses: the given one, or one that wraps it."""
        return channel

    def silences(self, env: Mapping[str, str]) -> bool:
        """Whether no message may leave a pod with this environment now, not even a report of its end."""
        return False

    def before_file(self, operation: str, step: int) -> None:
        """Called in the checkpoint writer's thread before an operation on a file of the checkpoint of `step`."""

    def activation(self, output: "Tensor") -> "Tensor":
        """A stage's output after a forward, perhaps changed."""
        return output

    def gradient(self, parameters: "list[nn.Parameter]") -> None:
        """Called with a stage's parameters after the backward of one micro-batch; may change their `.grad`s."""

    def end_of_schedule(self) -> None:
        """Called when all computations of a step are done."""

    def rows_to_store(self, rows: "Tensor") -> "Tensor":
        """Boundary activations, one a sample, that are about to be stored in the cache, perhaps changed."""
        return rows


def plug_of(env: Mapping[str, str], job: Job | None = None) -> Plug:
    """The plug of a process with this environment, from the module that FROSTLINE_PLUG names.

    Without the variable (on a cluster nobody sets it), a job with planned faults gets their plug. Raises ValueError if there is
    no such module.
    """
    name = env.get(PLUG, "") or (PLANNED_FAULTS if job is not None and job.faults else "")
    if not name:
        return Plug()
    try:
        module: Any = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise ValueError(f"{PLUG} names {name!r}, and {missing}; install it where the workers run, or unset {PLUG}") from missing
    return module.plug()
