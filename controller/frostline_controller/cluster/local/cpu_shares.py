"""Shares of a processor for local workers: control groups with a quota, where a job asks for workers of one speed."""

import os

from frostline_contract.cpu_groups import CpuGroups
from frostline_contract.job import Job


def cpu_groups_of(job: Job) -> CpuGroups | None:
    """Return new control groups for the job's workers; None where the job gives them no shares.

    Raises ValueError where the shares exceed this machine's processors, or control groups cannot be made.
    """
    share, cores = job.placement.worker_cpus, len(os.sched_getaffinity(0))
    if share is None:
        return None
    if (workers := job.placement.workers + job.placement.spare_workers) * share > cores:
        raise ValueError(
            f"placement.worker_cpus is {share:g} and {workers} workers would need {workers * share:g} of {cores} processors; "
            f"lower it to {cores / workers:.2g}, or start fewer workers"
        )
    return CpuGroups.create()
