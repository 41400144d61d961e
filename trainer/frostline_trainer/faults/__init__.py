"""Planned faults of a worker (docs/faults.md), imported only for a job that plans some (process/plug.py)."""

from frostline_trainer.faults.of_worker import PlannedFaults


def plug() -> PlannedFaults:
    """The plug that carries out planned faults."""
    return PlannedFaults()
