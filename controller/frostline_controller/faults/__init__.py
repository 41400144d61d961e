"""Planned faults that the controller carries out (docs/faults.md), loaded only for a job that plans some (run/plug.py)."""

from frostline_controller.faults.planned import PlannedFaults
from frostline_controller.run.run import Run


def plug(run: Run) -> PlannedFaults:
    """Return the plug that carries out the planned faults of pods, nodes and services, and the controller's own death."""
    return PlannedFaults(run.facts, run.store, run.outbox, run.backend)
