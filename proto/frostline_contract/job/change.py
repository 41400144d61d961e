"""The changes of a job file that a running run adopts: those of live fields, and of no fixed one (docs/protocols.md 9)."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from frostline_contract.job.load import is_live
from frostline_contract.job.model import Job

SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Difference:
    """A field that two jobs do not agree in. path: dotted. live: it may change while the run goes on."""

    path: str
    before: Any
    after: Any
    live: bool


def differences(before: BaseModel, after: BaseModel, path: str = "") -> list[Difference]:
    """In the order of the job file. Sections that both sides have are compared field by field, lists and mappings as a whole."""
    found: list[Difference] = []
    for name, field in type(before).model_fields.items():
        old, new, place = getattr(before, name), getattr(after, name), f"{path}{name}"
        if isinstance(old, BaseModel) and type(old) is type(new):
            found += differences(old, new, f"{place}.")
        elif old != new:
            found.append(Difference(place, old, new, is_live(field)))
    return found


def take_changes(followed: Job, offered: Job) -> tuple[Job, list[str]]:
    """The job to follow from now on, and one sentence a change: taken, or refused with the field's name and both values.

    Changes that make no job together (a limit between two fields) are refused as a whole.
    """
    found = differences(followed, offered)
    refused = [
        f"refused: {one.path} is fixed for the run's life and stays {_shown(one.before)} (the release says {_shown(one.after)}); "
        "install another release for it"
        for one in found
        if not one.live
    ]
    taken = [f"{one.path} from {_shown(one.before)} to {_shown(one.after)}" for one in found if one.live]
    try:
        job = Job.model_validate(_with_live_changes(followed, found))
    except ValidationError as error:
        return followed, [*refused, f"refused: {', '.join(taken)}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"]
    return job, [*refused, *(f"changed: {text}" for text in taken)]


def _with_live_changes(followed: Job, found: list[Difference]) -> dict[str, Any]:
    """As plain values."""
    raw = followed.model_dump()
    for one in found:
        if one.live:
            *sections, name = one.path.split(".")
            section = raw
            for key in sections:
                section = section[key]
            section[name] = one.after
    return raw


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
