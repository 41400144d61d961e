"""The check of changes to a job when a run goes on: only live fields may change (docs/protocols.md 9)."""

from frostline_contract.job import Job, JobError, apply_overrides, parse_job
from frostline_contract.job.change import differences
from frostline_controller.local_run.errors import UserMistake


def resumed_job(job: Job, overrides: list[str], workers: int | None) -> Job:
    """Return the job with live fields changed. Raises UserMistake with the name of every fixed field that was to be changed."""
    wanted = [*overrides, *([f"placement.workers={workers}"] if workers else [])]
    try:
        changed = parse_job(apply_overrides(job.model_dump(mode="json"), wanted), "resume")
    except JobError as error:
        raise UserMistake(str(error)) from None
    fixed = [
        f"{one.path} is {one.before!r} and fixed for the whole run; start a new run to have {one.after!r}"
        for one in differences(job, changed)
        if not one.live
    ]
    if fixed:
        raise UserMistake("; ".join(fixed))
    return changed
