"""The plug: the only hook by which code from outside may act in a controller's rounds, as planned faults do (docs/faults.md).

A controller without a plug has `NoPlug`. No module of the controller imports a plug's module; it is loaded by its name.
"""

import importlib
from typing import Any, Protocol

from frostline_contract.phases import ControllerPhase
from frostline_controller.run.run import Run

PLANNED_FAULTS = "frostline_controller.faults"
"""The plug that carries out a job's planned `faults`: a module with a function `plug(run)`."""


class RoundPlug(Protocol):
    """The calls of a controller to its plug, which may act on the cluster, or end this process."""

    async def advance(self) -> None:
        """Act once in a round, on the state that the round has made."""

    async def at(self, phase: ControllerPhase) -> None:
        """Take note that this controller is at `phase`. The call need not return."""


class NoPlug:
    """A plug that does nothing."""

    async def advance(self) -> None:
        """Do nothing."""

    async def at(self, phase: ControllerPhase) -> None:
        """Do nothing."""


def plug_of(run: Run) -> RoundPlug:
    """Return the plug of a run: that of planned faults where its job plans some."""
    if not run.facts.job.faults:
        return NoPlug()
    module: Any = importlib.import_module(PLANNED_FAULTS)
    plug: RoundPlug = module.plug(run)
    return plug
