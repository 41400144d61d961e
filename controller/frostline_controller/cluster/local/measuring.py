"""Settling of the fields that a job leaves open (`auto`) before the run begins: units are measured on this machine, in as many
processes at the same time as workers of the run will compute, each with a worker's share of a processor."""

import os
import subprocess

from pydantic import TypeAdapter

from frostline_contract.exit_codes import USER_MISTAKE
from frostline_contract.job import Job, dump_job
from frostline_contract.job.automatic import Settled
from frostline_contract.scratch_folder import ScratchFolder
from frostline_contract.statistics import SizeProfiles
from frostline_controller.cluster.local.child import child_environment, mortal, python_module
from frostline_controller.cluster.local.cpu_shares import cpu_groups_of
from frostline_controller.local_run.errors import CommandError, UserMistake

MEASURING = "frostline_trainer.process.sizes"


MEASURED = TypeAdapter(list[SizeProfiles])


def settled_here(job: Job) -> Settled | None:
    """Return the values for the job's `auto` fields on this machine; None where the job has none.

    Raises UserMistake where job or data are wrong, CommandError where measuring fails.
    """
    if not job.training.automatic:
        return None
    # Imported here: the planner's numpy would take a tenth of the start of every run, and few jobs have something to settle.
    from frostline_controller.planner.numerics import settle_measured

    measured = measured_here(job)
    try:
        return settle_measured(job, measured, _slots(job))
    except ValueError as mistake:
        raise UserMistake(str(mistake)) from None


def settings_of(job: Job, settled: Settled) -> list[str]:
    """Return the settled values as `--set` arguments, for several runs that have to use the same values."""
    return [f"training.{name}={getattr(settled, name)}" for name in job.training.automatic]


def measured_here(job: Job) -> SizeProfiles:
    """Measure the job's units at each micro-batch size that it allows, and the link between workers of this machine.

    Raises UserMistake where job or data are wrong, CommandError where measuring fails.
    """
    from frostline_controller.planner.measurements import of_one_machine  # imported here as above

    workers = job.placement.workers
    try:
        groups = cpu_groups_of(job)
    except ValueError as mistake:
        raise UserMistake(str(mistake)) from None
    shares = groups.environment(job.placement.worker_cpus or 0.0) if groups is not None else {}
    try:
        return of_one_machine(_measured(job, min(workers, _slots(job) or workers), shares))
    finally:
        if groups is not None:
            groups.remove()


def _slots(job: Job) -> int | None:
    """Return how many of the job's workers compute at the same time on this machine; None: all."""
    from frostline_controller.planner.inputs import parallel_slots  # imported here as above

    return parallel_slots(job, len(os.sched_getaffinity(0)))


def _measured(job: Job, workers: int, shares: dict[str, str]) -> list[SizeProfiles]:
    """Return what so many processes measure at the same time. shares: the environment that gives them theirs of a processor."""
    threads = str(job.training.threads)
    with ScratchFolder() as folder:
        file, out = folder / "asked.yaml", folder / "sizes.json"
        file.write_text(dump_job(job), encoding="utf-8")
        env = child_environment({**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **shares})
        ended = subprocess.run(
            mortal([*python_module(MEASURING), str(file), str(out), str(workers)]), env=env, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False,
        )  # fmt: skip
        said = ended.stderr.strip()
        if ended.returncode == USER_MISTAKE:
            raise UserMistake(said.splitlines()[-1] if said else f"{MEASURING} says nothing of what is wrong")
        if ended.returncode or not out.exists():
            raise CommandError(
                f"training.{' and training.'.join(job.training.automatic)} cannot be settled: measuring ended with code "
                f"{ended.returncode}: {' '.join(said.splitlines()[-3:])}; set them in the job"
            )
        return MEASURED.validate_json(out.read_bytes())
