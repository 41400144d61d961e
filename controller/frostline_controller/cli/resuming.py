"""Which fields of a job may change when a run goes on: the live ones (PROTOCOLS 9)."""

from typing import Any

from frostline_contract.job import Job, JobError, apply_overrides, parse_job
from frostline_controller.cli.errors import UserMistake
from frostline_controller.cli.job import change_of


def resumed_job(job: Job, overrides: list[str], workers: int | None) -> Job:
    """The job with live fields changed. Raises UserMistake that names every fixed field that was to be changed."""
    wanted = [*overrides, *([f"placement.workers={workers}"] if workers else [])]
    before = job.model_dump(mode="json")
    try:
        changed = parse_job(apply_overrides(before, wanted), "resume")
    except JobError as error:
        raise UserMistake(str(error)) from None
    fixed = [
        f"{path} is {old!r} and fixed for the whole run; start a new run to have {new!r}"
        for path, old, new in differences(before, changed.model_dump(mode="json"))
        if change_of(path) != "live"
    ]
    if fixed:
        raise UserMistake("; ".join(fixed))
    return changed


def differences(before: Any, after: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """(path, old, new) of every value that differs between two job mappings; lists are compared as a whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in dict.fromkeys([*before, *after]):
            found += differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
        return found
    return [] if before == after else [(path, before, after)]
