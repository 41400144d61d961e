"""The check that a run goes on with the job that it was started with."""

from pathlib import Path

from frostline_contract.job import Job, JobError, section_digests
from frostline_controller.run.durable import DurableState


def check_same_job(state: DurableState, job: Job, file: Path) -> None:
    """Raise JobError where a fixed field of the job is not what the run was started with: the file was edited or torn.

    A state without digests, or of a version with other fields, says nothing about it.
    """
    now = section_digests(job)
    if state.job_digests.get("fields") != now["fields"]:
        return
    changed = [name for name, digest in now.items() if state.job_digests.get(name) != digest]
    if changed:
        raise JobError(
            f"{file}: is not the job that the run was started with: fixed fields differ in {', '.join(changed)}; restore the "
            "file, or start a new run"
        )
