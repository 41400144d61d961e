"""What a run takes of a changed job file: live fields, and no fixed one (PROTOCOLS 9)."""

from typing import Any

from pydantic import BaseModel, ValidationError

from frostline_contract.job.model import Job

SHOWN_CHARACTERS = 60


def take_changes(followed: Job, offered: Job) -> tuple[Job, list[str]]:
    """The job to follow from now on, and one sentence a change: taken, or refused with the field's name and both values.

    Changes that make no job together (a limit between two fields) are refused as a whole.
    """
    taken: list[str] = []
    refused: list[str] = []
    raw = _merged(followed, offered, "", taken, refused)
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        return followed, [*refused, f"refused: {', '.join(taken)}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"]
    return job, [*refused, *(f"changed: {text}" for text in taken)]


def _merged(old: BaseModel, new: BaseModel, path: str, taken: list[str], refused: list[str]) -> dict[str, Any]:
    """Fields of `old` with what may change from `new`. Sections that both sides have are compared field by field."""
    merged: dict[str, Any] = {}
    for name, field in type(old).model_fields.items():
        before, after, place = getattr(old, name), getattr(new, name), f"{path}{name}"
        merged[name] = before
        if before == after:
            continue
        if isinstance(before, BaseModel) and type(before) is type(after):
            merged[name] = _merged(before, after, f"{place}.", taken, refused)
            continue
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("change") == "live":
            taken.append(f"{place} from {_shown(before)} to {_shown(after)}")
            merged[name] = after
        else:
            refused.append(
                f"refused: {place} is fixed for the run's life and stays {_shown(before)} (the release says {_shown(after)}); "
                "install another release for it"
            )
    return merged


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
