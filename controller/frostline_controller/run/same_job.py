"""The checks that a run goes on with the job that it was started with, and with its pieces of state."""

from pathlib import Path

from frostline_contract.job import Job, JobError, section_digests
from frostline_controller.run.durable import DurableState


def check_same_job(state: DurableState, job: Job, file: Path) -> None:
    """Raise JobError where a fixed field of the job is not what the run was started with: the file was edited or torn.

    A state without digests, or of a version with other fields, says nothing about it. Also raise where the plan that runs cuts
    state into other pieces than a run of this job does: a version before this one began the run.
    """
    now = section_digests(job)
    changed = [name for name, digest in now.items() if state.job_digests.get(name) != digest]
    if changed and state.job_digests.get("fields") == now["fields"]:
        raise JobError(
            f"{file}: is not the job that the run was started with: fixed fields differ in {', '.join(changed)}; restore the "
            "file, or start a new run"
        )
    _check_pieces(state, job, file)


def _check_pieces(state: DurableState, job: Job, file: Path) -> None:
    training, plan = job.training, state.current
    if plan is None or plan.state_tiles > 1 or training.state_tiles == 1 or not 1 < training.state_ranges == plan.state_ranges:
        return
    raise JobError(
        f"{file}: the run was begun by a version that cut each unit's state into {plan.state_ranges} ranges whatever tiles cut "
        f"it; here each of {training.state_tiles} tiles has ranges of its own, and gradients' norms other bits: start a new run, "
        "or go on with the version that began it"
    )
