"""Measures units at several micro-batch sizes, for a job that leaves numerics to its run (`frostline_contract.job.automatic`).

    python -m frostline_trainer.process.sizes JOB.yaml OUT.json

`frostline run` starts it before a run begins; on a cluster a worker measures before it registers. Exit codes are those of a
worker.
"""

import logging
import sys
import time
from pathlib import Path

import torch

from frostline_contract.durable_files import replace_durably
from frostline_contract.exit_codes import DONE, USER_MISTAKE
from frostline_contract.job import Job, load_job
from frostline_contract.job.automatic import at_size, sizes_to_try
from frostline_contract.statistics import SizeProfiles, WorkerProfile
from frostline_trainer.memory import settle_allocator
from frostline_trainer.process.setup import unproven_context
from frostline_trainer.profile import profile_units

log = logging.getLogger(__name__)

SECONDS_MAX = 30.0
"""Time after which no larger size is measured; each takes about twice as long as the previous one."""
WORSE = 1.1
"""If a sample takes this much longer than at the best size, at two sizes, larger ones are not measured: they only need more
memory."""


def measure_sizes(job: Job) -> SizeProfiles:
    """Units' costs at each possible micro-batch size, from the smallest on, as far as time and memory allow.

    Raises ValueError for a mistake of the user.
    """
    started, found = time.monotonic(), list[WorkerProfile]()
    sizes = sizes_to_try(job.training, job.placement.workers)
    context = unproven_context(at_size(job, sizes[0]))
    # Other load on the machine may delay one size and not another; a single thread's own CPU time does not depend on it.
    alone = context.device.type == "cpu" and job.training.threads == 1
    clock = time.thread_time if alone else time.perf_counter
    sizes = [size for size in sizes if size <= len(context.data.train)]
    for size in sizes:
        if found and (_is_worse(found) or time.monotonic() - started > SECONDS_MAX):
            break
        context.job = at_size(job, size)
        try:
            found.append(profile_units(context, clock))
        except torch.OutOfMemoryError as shortage:
            if not found:
                raise
            log.info("micro-batches of %d do not fit: %s", size, shortage)
            break
        log.info("micro-batches of %d: %.3g s a sample", size, _seconds_a_sample(found[-1]))
    if not found:
        raise ValueError(
            f"data: {len(context.data.train)} training samples are fewer than the smallest micro-batch of training.batch_size "
            f"{job.training.batch_size}; lower batch_size or give more data"
        )
    return SizeProfiles(
        profiles=tuple(found),
        tied=context.cut.tied is not None,
        boundary_bytes_per_sample=context.boundary_bytes_per_sample,
    )


def _is_worse(found: list[WorkerProfile]) -> bool:
    *before, last = [_seconds_a_sample(profile) for profile in found]
    return bool(before) and min(before[-1], last) > WORSE * min(before)


def _seconds_a_sample(profile: WorkerProfile) -> float:
    return sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units) / profile.micro_batch_size


def main(job_file: str, out: str) -> int:
    """Write the measured costs as JSON; a mistake of the user is reported on standard error. Returns the exit status."""
    settle_allocator()  # units are measured as a worker computes them
    try:
        measured = measure_sizes(load_job(job_file))
    except ValueError as mistake:
        print(mistake, file=sys.stderr)
        return USER_MISTAKE
    replace_durably(Path(out), measured.model_dump_json() + "\n")
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
