"""Writes docs/job-reference.md from the job model: `python -m frostline_contract.job.reference > docs/job-reference.md`."""

import types
import typing
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from frostline_contract.job.model import Job

_HEAD = """# Job file reference

Generated from `frostline_contract.job`; `make proto` writes it again. A job file is YAML with the sections below; unknown keys
are refused. `--set section.field=value` on the command line overrides single fields.

*fixed* fields keep their value for the whole run. *live* ones may change while it goes on.
"""


def job_reference() -> str:
    """The reference as Markdown: one table a section, in the job file's order."""
    lines = [_HEAD]
    for path, section in _sections(Job, ""):
        lines += [f"## {path or 'the job'}", ""]
        doc = section.__dict__.get("__doc__")
        if doc:
            lines += [" ".join(doc.split()), ""]
        lines += ["| field | type | default | change | |", "|---|---|---|---|---|"]
        lines += [_row(name, field) for name, field in section.model_fields.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _sections(section: type[BaseModel], path: str) -> list[tuple[str, type[BaseModel]]]:
    found = [(path, section)]
    for name, field in section.model_fields.items():
        inner, many = _inner_section(field.annotation)
        if inner is not None:
            found += _sections(inner, f"{path}.{name}".lstrip(".") + ("[]" if many else ""))
    return found


def _inner_section(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that a field holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in typing.get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part, type(None) not in typing.get_args(annotation)
    return None, False


def _row(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra
    change = extra.get("change", "") if isinstance(extra, dict) else ""
    cells = [f"`{name}`", _type(field.annotation) + _limits(field), _default(field), str(change), field.description or ""]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _type(parts[0]) + "".join(_limits(rule) for rule in parts[1:] if isinstance(rule, FieldInfo))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in parts)
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"map of {_type(parts[0])} to {_type(parts[1])}"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {int: "integer", float: "number", str: "text", bool: "true or false", Any: "any"}[annotation]


def _limits(field: FieldInfo) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [f"{sign} {getattr(rule, name)}" for rule in field.metadata for name, sign in signs.items() if hasattr(rule, name)]
    return f", {', '.join(limits)}" if limits else ""


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if value in ((), {}):
        return "empty"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(job_reference(), end="")
