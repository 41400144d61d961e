"""Measures units at several micro-batch sizes, for a job that leaves numerics to its run (`frostline_contract.job.automatic`).

    python -m frostline_trainer.process.sizes JOB.yaml OUT.json WORKERS

`frostline run` starts it before a run begins, with the number of workers that will compute at the same time
(`process.company`); on a cluster a worker measures before it registers. Exit codes are those of a worker.
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
from frostline_trainer.process.company import Company, in_company
from frostline_trainer.process.setup import choose_device, unproven_context
from frostline_trainer.profile import profile_units

log = logging.getLogger(__name__)

SECONDS_MAX = 30.0
"""Time after which no larger size is measured; each takes about twice as long as the previous one."""
WORSE = 1.1
"""If a sample takes this much longer than at the best size, at two sizes, larger ones are not measured: they only need more
memory."""


def measure_sizes(job: Job, company: Company | None = None) -> SizeProfiles:
    """Units' costs at each possible micro-batch size, from the smallest on, as far as time and memory allow.

    Args:
        job: with `auto` in it.
        company: the processes that measure at the same time; None: this process, a worker, measures alone.

    Raises:
        ValueError: a mistake of the user.
    """
    sizes, found = sizes_to_try(job.training, job.placement.workers), list[WorkerProfile]()
    context = unproven_context(at_size(job, sizes[0]))
    if company is None:
        company = Company.alone()
    else:
        company.take_share()  # not before: data and model would be loaded with the share as well
    started = time.monotonic()
    # Other load on the machine may delay one size and not another; a single thread's own CPU time does not depend on it.
    alone = context.device.type == "cpu" and job.training.threads == 1
    clock = time.thread_time if alone else time.perf_counter
    sizes = [size for size in sizes if size <= len(context.data.train)]
    for size in sizes:
        if not company.go_on(not found or not (_is_worse(found) or time.monotonic() - started > SECONDS_MAX)):
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
        link=company.link(job),
    )


def _is_worse(found: list[WorkerProfile]) -> bool:
    *before, last = [_seconds_a_sample(profile) for profile in found]
    return bool(before) and min(before[-1], last) > WORSE * min(before)


def _seconds_a_sample(profile: WorkerProfile) -> float:
    return sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units) / profile.micro_batch_size


def main(job_file: str, out: str, workers: str) -> int:
    """Write the measured costs as JSON; a mistake of the user is reported on standard error.

    Args:
        job_file: with `auto` in it.
        out: the file to write, a list with the SizeProfiles of each process; it is in a folder of its own.
        workers: number of processes that measure at the same time. On a GPU one measures alone, as each worker of a run has a
            GPU to itself.

    Returns:
        The exit status.
    """
    settle_allocator()  # units are measured as a worker computes them
    try:
        job = load_job(job_file)
        members = 1 if choose_device(job).type == "cuda" else int(workers)
        found = in_company(Path(out).parent, members, lambda company: measure_sizes(job, company).model_dump_json().encode())
    except ValueError as mistake:
        print(mistake, file=sys.stderr)
        return USER_MISTAKE
    replace_durably(Path(out), f"[{b','.join(found).decode()}]\n")
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
