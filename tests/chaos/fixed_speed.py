"""Cases on workers of fixed speed: `placement.worker_cpus`, where control groups can be written.

The speed is placement, and is added to a case that has been drawn already: a seed's job, faults and acts stay the same.
"""

import math
from dataclasses import replace

from frostline_contract.cpu_groups import CpuGroups, NoCpuGroups
from tests.chaos.cases import Case

LEAST_SHARE = 0.1
"""The lower bound of the field."""


def at_share(case: Case, share: float, processors: int) -> Case:
    """Return the case with this share of a processor for each worker, or with as much as the machine has for all of them.

    Raises ValueError where the machine has less than the least share for each.
    """
    most = math.floor(100 * processors / case.workers) / 100
    if most < LEAST_SHARE:
        raise ValueError(
            f"{case.name} has {case.workers} workers, and {processors} processors are less than {LEAST_SHARE} for each"
        )
    return replace(case, worker_cpus=min(share, most))


def why_not() -> str:
    """Return why no worker here can have a fixed speed; empty where it can."""
    try:
        CpuGroups.create().remove()
    except NoCpuGroups as reason:
        return str(reason)
    return ""


def that_can_run(cases: list[Case]) -> tuple[list[Case], list[str]]:
    """Return the cases that can run here, and for each of the others a line with the reason."""
    reason = why_not() if any(case.worker_cpus for case in cases) else ""
    skipped = [case for case in cases if reason and case.worker_cpus]
    return [case for case in cases if case not in skipped], [f"skipped {case.name}: {reason}" for case in skipped]
