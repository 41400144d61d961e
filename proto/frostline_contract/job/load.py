"""Reading job files: YAML to a checked Job, with errors that name field, value and remedy."""

import difflib
import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from frostline_contract.job.model import Job
from frostline_contract.job.section import NUMBER_TAG
from frostline_contract.job.yaml_text import JobError, plain, read_mapping, read_yaml, write_yaml


def load_job(path: str | Path, overrides: list[str] | None = None) -> Job:
    """Read a job file and apply `--set a.b=c` overrides.

    Paths in it (model.path, data.path, data.test_path, data.tokenizer, freeze.policy.replay_of) become absolute, relative to the
    file's folder.
    Raises JobError.
    """
    file = Path(path)
    raw = read_mapping(file, "model, task, data and training", "give a job file with -f")
    return parse_job(_absolute_paths(apply_overrides(raw, overrides or []), file.resolve().parent), str(file))


def parse_job(raw: dict[str, Any], origin: str = "job") -> Job:
    """Check a mapping. Raises JobError with one line a mistake."""
    try:
        return Job.model_validate(raw)
    except ValidationError as error:
        raise JobError(describe_mistakes(error, origin, Job)) from None


def describe_mistakes(error: ValidationError, origin: str, model: type[BaseModel]) -> str:
    """One line a mistake of a file that `model` describes: field, value and remedy. origin: the file, for people."""
    said = list_mistakes(error, model)
    return "\n".join([f"{origin}: {len(said)} mistake(s)", *(f"  {one}" for one in said)])


def list_mistakes(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Each mistake of values that `model` describes, as a line of its own: field, value and remedy."""
    return [_describe(mistake, model) for mistake in error.errors()]


def apply_overrides(raw: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Set `a.b=c` entries in a copy of `raw`; values are YAML. Raises JobError."""
    result: dict[str, Any] = plain(raw)
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise JobError(f"--set {text!r}: write it as section.field=value")
        place = result
        *parents, last = path.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise JobError(f"--set {text!r}: {parent} is no section")
        try:
            place[last] = read_yaml(value)
        except JobError as error:
            raise JobError(f"--set {text!r}: {error}") from None
    return result


def dump_job(job: Job) -> str:
    """The resolved job as YAML, for people: every field, in the model's order."""
    return write_yaml(job.model_dump(mode="json"))


def job_to_json(job: Job) -> str:
    """The resolved job as JSON, for workers: it is written and read a hundred times as fast as YAML, and a controller that starts
    a thousand workers answers nobody else while it writes."""
    return json.dumps(job.model_dump(mode="json"))


def job_from_json(text: str, origin: str) -> Job:
    """The job that `job_to_json` wrote. origin: who sent it, for people. Raises JobError."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise JobError(f"{origin}: no JSON ({error})") from None
    return parse_job(values, origin)


def job_digest(job: Job) -> str:
    """SHA-256 of the fixed fields: what makes it this run. A worker with another digest is refused (docs/protocols.md 8.6)."""
    return _digest(_fixed(job, _dumped(job)))


def job_revision(job: Job) -> str:
    """Of all fields, live ones too: the members of a generation follow one revision (docs/protocols.md 9). 16 hexadecimal digits."""
    return _digest(_dumped(job))[:16]


def section_digests(job: Job) -> dict[str, str]:
    """A digest of the fixed fields of each section, and of which fixed fields there are ("fields": another version of Frostline
    may have others). 16 hexadecimal digits each."""
    values = _fixed(job, _dumped(job))
    return {"fields": _digest(_fixed_names(job))[:16], **{name: _digest(value)[:16] for name, value in values.items()}}


def _fixed_names(section: BaseModel) -> dict[str, Any]:
    """Of a section's fields those that never change, sections below it with theirs."""
    names: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        inner = getattr(section, name)
        if isinstance(inner, BaseModel):
            _keep_section(names, name, field, _fixed_names(inner))
        elif not (is_live(field) or _is_unsaid(section, name)):
            names[name] = None
    return names


def _dumped(section: BaseModel) -> dict[str, Any]:
    """All fields that digests see, as JSON values."""
    values = section.model_dump(mode="json")
    for name in type(section).model_fields:
        inner = getattr(section, name)
        if _is_unsaid(section, name):
            del values[name]
        elif isinstance(inner, BaseModel):
            values[name] = _dumped(inner)
    return values


def _is_unsaid(section: BaseModel, name: str) -> bool:
    """Whether a field or section came later than runs that are still read (`section.fixed`), and has its default."""
    field = type(section).model_fields[name]
    return _came_later(field) and getattr(section, name) == field.default


def _came_later(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("later"))


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_live(field: FieldInfo) -> bool:
    """Whether a field may change while a run goes on (docs/protocols.md 9)."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("change") == "live"


def _fixed(section: BaseModel, values: dict[str, Any]) -> dict[str, Any]:
    """Of a section's values those that never change."""
    kept: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        inner = getattr(section, name)
        if isinstance(inner, BaseModel):
            _keep_section(kept, name, field, _fixed(inner, values.get(name, {})))
        elif name in values and not is_live(field):
            kept[name] = values[name]
    return kept


def _keep_section(kept: dict[str, Any], name: str, field: FieldInfo, inner: dict[str, Any]) -> None:
    """A section that came later counts only where it has something that never changes: a live value is in no digest."""
    if inner or not _came_later(field):
        kept[name] = inner


def _absolute_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    for *sections, field in (
        ("model", "path"), ("data", "path"), ("data", "test_path"), ("data", "tokenizer"), ("freeze", "policy", "replay_of"),
    ):  # fmt: skip
        place: Any = raw
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        value = place.get(field) if isinstance(place, dict) else None
        if isinstance(value, str) and (field != "tokenizer" or (folder / value).exists()):
            place[field] = str((folder / value).resolve())
    return raw


def _describe(mistake: Any, model: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in mistake["loc"] if part != NUMBER_TAG)
    if mistake["type"] == "extra_forbidden":
        return f"{place}: unknown key{_nearest(mistake['loc'], model)}"
    if mistake["type"] == "missing":
        return f"{place}: missing; add it"
    text = mistake["msg"].removeprefix("Value error, ")
    value = mistake["input"]
    shown = "" if isinstance(value, (dict, BaseModel)) else f" is {value!r}"
    return f"{place or model.__name__.lower()}{shown}: {text}"


def _nearest(location: tuple[Any, ...], model: Any) -> str:
    for part in location[:-1]:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field else None
    names = list(getattr(model, "model_fields", {}))
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    known = f"; known: {', '.join(names)}" if names else ""
    return f"; did you mean {close[0]}?" if close else known
