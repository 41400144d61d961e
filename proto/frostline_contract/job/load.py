"""Reading job files: YAML to a checked Job, with errors that name field, value and remedy."""

import difflib
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from frostline_contract.job.model import Job


class JobError(ValueError):
    """A mistake in a job file; the text names each field, its value and what to do."""


class _Yaml(yaml.SafeLoader):
    """YAML 1.2's booleans: true and false only, so that `mode: off` and the key `off:` stay words."""


_Yaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read_yaml(text: str) -> Any:
    """Plain data from YAML text. Raises yaml.YAMLError."""
    loader = _Yaml(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def load_job(path: str | Path, overrides: list[str] | None = None) -> Job:
    """Read a job file and apply `--set a.b=c` overrides.

    Paths in it (model.path, data.path, data.test_path, data.tokenizer) become absolute, relative to the file's folder.
    Raises JobError.
    """
    file = Path(path)
    try:
        raw = read_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{file}: cannot be read ({error.strerror}); give a job file with -f") from error
    except yaml.YAMLError as error:
        raise JobError(f"{file}: no valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise JobError(f"{file}: holds {type(raw).__name__}, expected a mapping with model, task, data and training")
    return parse_job(_absolute_paths(apply_overrides(raw, overrides or []), file.resolve().parent), str(file))


def parse_job(raw: dict[str, Any], origin: str = "job") -> Job:
    """Check a mapping. Raises JobError with one line a mistake."""
    try:
        return Job.model_validate(raw)
    except ValidationError as error:
        lines = [f"{origin}: {len(error.errors())} mistake(s)"]
        lines += [f"  {_describe(mistake)}" for mistake in error.errors()]
        raise JobError("\n".join(lines)) from None


def apply_overrides(raw: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Set `a.b=c` entries in a copy of `raw`; values are YAML. Raises JobError for a text without '='."""
    result = json.loads(json.dumps(raw))
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
        place[last] = read_yaml(value)
    return result


def dump_job(job: Job) -> str:
    """The resolved job as YAML: every field, in the model's order."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def job_digest(job: Job) -> str:
    """SHA-256 of the fixed fields: what makes it this run. A worker with another digest is refused (PROTOCOLS 8)."""
    return _digest(_fixed(job, job.model_dump(mode="json")))


def job_revision(job: Job) -> str:
    """Of all fields, live ones too: the members of a generation follow one revision (PROTOCOLS 9). 16 hexadecimal digits."""
    return _digest(job.model_dump(mode="json"))[:16]


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_live(field: FieldInfo) -> bool:
    """Whether a field may change while a run goes on (PROTOCOLS 9)."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("change") == "live"


def _fixed(section: BaseModel, values: dict[str, Any]) -> dict[str, Any]:
    """Of a section's values those that never change."""
    kept: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        inner = getattr(section, name)
        if isinstance(inner, BaseModel):
            kept[name] = _fixed(inner, values[name])
        elif not is_live(field):
            kept[name] = values[name]
    return kept


def _absolute_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    for section, field in (("model", "path"), ("data", "path"), ("data", "test_path"), ("data", "tokenizer")):
        place = raw.get(section)
        value = place.get(field) if isinstance(place, dict) else None
        if isinstance(value, str) and (field != "tokenizer" or (folder / value).exists()):
            place[field] = str((folder / value).resolve())
    return raw


def _describe(mistake: Any) -> str:
    place = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        return f"{place}: unknown key{_nearest(mistake['loc'])}"
    if mistake["type"] == "missing":
        return f"{place}: missing; add it"
    text = mistake["msg"].removeprefix("Value error, ")
    value = mistake["input"]
    shown = "" if isinstance(value, (dict, BaseModel)) else f" is {value!r}"
    return f"{place or 'job'}{shown}: {text}"


def _nearest(location: tuple[Any, ...]) -> str:
    model: Any = Job
    for part in location[:-1]:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field else None
    names = list(getattr(model, "model_fields", {}))
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    known = f"; known: {', '.join(names)}" if names else ""
    return f"; did you mean {close[0]}?" if close else known
