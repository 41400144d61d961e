"""Settling of the fields that a job leaves open (`auto`) before the run begins: one process measures units, alone on this
machine."""

import os
import subprocess

from frostline_contract.exit_codes import USER_MISTAKE
from frostline_contract.job import Job, dump_job
from frostline_contract.job.automatic import Settled
from frostline_contract.scratch_folder import ScratchFolder
from frostline_contract.statistics import SizeProfiles
from frostline_controller.cluster.local.child import child_environment, mortal, python_module
from frostline_controller.local_run.errors import CommandError, UserMistake

MEASURING = "frostline_trainer.process.sizes"


def settled_here(job: Job) -> Settled | None:
    """Return the values for the job's `auto` fields on this machine; None where the job has none.

    Raises UserMistake where job or data are wrong, CommandError where measuring fails.
    """
    if not job.training.automatic:
        return None
    # Imported here: the planner's numpy would take a tenth of the start of every run, and few jobs have something to settle.
    from frostline_controller.planner.inputs import parallel_slots
    from frostline_controller.planner.numerics import settle_measured

    measured = _measured(job)
    try:
        return settle_measured(job, measured, parallel_slots(job, len(os.sched_getaffinity(0))))
    except ValueError as mistake:
        raise UserMistake(str(mistake)) from None


def settings_of(job: Job, settled: Settled) -> list[str]:
    """Return the settled values as `--set` arguments, for several runs that have to use the same values."""
    return [f"training.{name}={getattr(settled, name)}" for name in job.training.automatic]


def _measured(job: Job) -> SizeProfiles:
    threads = str(job.training.threads)
    with ScratchFolder() as folder:
        file, out = folder / "asked.yaml", folder / "sizes.json"
        file.write_text(dump_job(job), encoding="utf-8")
        env = child_environment({**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads})
        ended = subprocess.run(
            mortal([*python_module(MEASURING), str(file), str(out)]), env=env, cwd=folder, stdin=subprocess.DEVNULL,
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
        return SizeProfiles.model_validate_json(out.read_text(encoding="utf-8"))
