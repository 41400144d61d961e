"""The interface for packages with a schedule of their own: an operation as a triple, and the program check.

Operations, figures and the registry are in `frostline_contract.operations`, `.schedule_figures` and `.schedules`.
"""

from typing import NamedTuple

from frostline_trainer.step.program_check import check_schedule

__all__ = ["Action", "check_schedule"]


class Action(NamedTuple):
    """One forward or backward of one micro-batch (counted within the replica) through one stage."""

    forward: bool
    stage: int
    micro_batch: int
