"""Units that are frozen from a run's first step, and those that can never learn: the one home of both."""

from frostline_contract.job.adapters import blocks_with_adapters
from frostline_contract.job.model import Job


def lowest_freeze_point(job: Job, num_units: int) -> int:
    """The freeze point below which no decision goes: with adapters the first unit that has any; nothing before it can learn."""
    adapters = job.model.adapters
    return 1 + blocks_with_adapters(adapters, num_units - 2)[0] if adapters is not None else 0


def initial_freeze_point(job: Job, num_units: int) -> int:
    """The freeze point from step 1 on, until a decision names another one.

    Args:
        job: the run's.
        num_units: embedding, blocks and head.

    Returns:
        Index of the first unit that learns.
    """
    return max(job.initial_freeze_point, lowest_freeze_point(job, num_units))
