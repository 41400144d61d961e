"""Planned faults of a worker (docs/faults.md): a package that nothing imports but a job that plans some (process/plug.py)."""

from frostline_trainer.faults.of_worker import PlannedFaults


def plug() -> PlannedFaults:
    """What a worker plugs in."""
    return PlannedFaults()
