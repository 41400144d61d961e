"""`frostline job`: the documented job model, field by field, and its JSON schema."""

import difflib
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from frostline_contract.job import Job
from frostline_controller.local_run.errors import UserMistake


@dataclass(frozen=True)
class JobField:
    """One field of the job file.

    Attributes:
        default: the default as text; None where the field is required.
        change: "live" (the field may change while the run goes on) or "fixed".
        is_section: whether the field holds further fields.
    """

    path: str
    type_text: str
    default: str | None
    change: str
    doc: str
    is_section: bool


def job_fields(model: type[BaseModel] = Job, prefix: str = "") -> Iterator[JobField]:
    """Yield every field of the job file in the model's order, each section before its fields."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        section = _section_of(info.annotation)
        yield JobField(
            path, _type_text(info.annotation), _default(info), str(extra.get("change", "")), info.description or "", bool(section)
        )
        if section is not None:
            separator = "[]." if get_origin(info.annotation) is tuple else "."
            yield from job_fields(section, path + separator)


def explain(field: str | None, model: type[BaseModel] = Job, file: str = "job file", command: str = "job") -> str:
    """Return the documentation of one field or section, or of the whole file. Raises UserMistake for an unknown name.

    Args:
        field: dotted name of the field or section; None: the whole file.
        model: the model of the file.
        file: what the file is called in messages.
        command: the `frostline` command whose --explain shows the whole documentation.
    """
    fields = list(job_fields(model))
    if field is None:
        return "\n".join(_describe(entry) for entry in fields)
    plain = field.replace("[]", "").rstrip(".")
    chosen = [entry for entry in fields if _matches(entry.path.replace("[]", ""), plain)]
    if not chosen:
        names = [entry.path.replace("[]", "") for entry in fields]
        close = difflib.get_close_matches(plain, names, n=3, cutoff=0.5)
        ends = [name for name in names if name.rsplit(".", 1)[-1] == plain.rsplit(".", 1)[-1]]
        hint = ", ".join(dict.fromkeys([*ends, *close])) or f"see `frostline {command} --explain`"
        raise UserMistake(f"the {file} has no field {field!r}; did you mean {hint}?")
    return "\n".join(_describe(entry) for entry in chosen)


def schema_text() -> str:
    """Return the job file's JSON schema."""
    return json.dumps(Job.model_json_schema(), indent=2)


def _matches(path: str, wanted: str) -> bool:
    return path == wanted or path.startswith(wanted + ".")


def _describe(field: JobField) -> str:
    depth = field.path.count(".")
    indent = "  " * depth
    if field.is_section:
        return f"{indent}{field.path}: {field.doc}"
    default = "required" if field.default is None else f"default {field.default}"
    known = "; ".join(filter(None, (field.type_text, default, field.change)))
    return f"{indent}{field.path}  ({known})\n{indent}    {field.doc}"


def _section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_text(get_args(annotation)[0])
    if origin is Literal:
        return " | ".join(str(choice) for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " | ".join("null" if part is type(None) else _type_text(part) for part in get_args(annotation))
    if origin is tuple:
        return f"list of {_type_text(get_args(annotation)[0])}"
    if origin is dict:
        key, value = get_args(annotation)
        return f"mapping of {_type_text(key)} to {_type_text(value)}"
    return "anything" if annotation is Any else getattr(annotation, "__name__", str(annotation))


def _default(info: FieldInfo) -> str | None:
    if info.default is PydanticUndefined:
        return None
    return "" if isinstance(info.default, BaseModel) else json.dumps(info.default, default=list)
