"""The chart's two generated files, from the job model: a values file is a job file.

    python -m frostline_contract.job.values_schema schema > charts/frostline/values.schema.json
    python -m frostline_contract.job.values_schema values > charts/frostline/values.yaml

Helm reads YAML by other rules than we do, and merges. What follows from that is said here once and tested in tests/chart:
a bare `off` is false to it, whole numbers above 2^53 - 1 lose digits, and a null takes a default away where the chart has one.
"""

import json
import sys
import textwrap
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from frostline_contract.job.model import Job

DRAFT = "http://json-schema.org/draft-07/schema#"
WHOLE_NUMBER_MAX = 2**53 - 1
"""Helm keeps numbers as 64-bit floats: above this, a whole number may become its neighbour."""
BOOLEAN_WORDS = {"y": True, "yes": True, "on": True, "n": False, "no": False, "off": False}
"""Words that are booleans to Helm's YAML and words to ours."""
COMMENT_WIDTH = 116

_HEAD = """\
# Generated from the job model; `make proto` writes it again. A values file is a job file: helm install my-run charts/frostline -f job.yaml
# A line that is commented out has no value, or one that the program knows by itself; `fixed` values are kept for a run's whole life,
# `live` ones may change by `helm upgrade`. The same fields, as tables: docs/job-reference.md.
"""


def values_schema() -> dict[str, Any]:
    """values.schema.json: JSON Schema, draft 7, without references. Unknown keys are refused everywhere but in free maps."""
    model = Job.model_json_schema()
    schema = _plain(model, model["$defs"])
    _require(schema, Job)
    schema["properties"]["global"] = {"type": "object", "description": "Helm's own; the chart reads nothing of it."}
    return {"$schema": DRAFT, "title": "A Frostline job, and how it lies on a cluster", **schema}


def boolean_words() -> list[str]:
    """Places of the model that Helm's YAML takes for booleans: values as path=word, keys as path."""
    return sorted(_words(Job, ""))


def values_file() -> str:
    """values.yaml: every field with its default, its meaning above it."""
    return _HEAD + "\n".join(_section_lines(Job, None, 0)) + "\n"


def _plain(node: Any, definitions: dict[str, Any]) -> Any:
    """A node of pydantic's schema without references, titles and defaults, and with what Helm makes of some values."""
    if isinstance(node, list):
        return [_plain(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**definitions[node["$ref"].rsplit("/", 1)[-1]], **{key: value for key, value in node.items() if key != "$ref"}}
    result = {
        key: _plain(value, definitions) for key, value in node.items() if key not in ("title", "default", "$defs", "properties")
    }
    result.pop("later", None)
    if "change" in result:
        result["description"] = f"{result.get('description', '')} ({result.pop('change')})"
    if "properties" in node:
        result["properties"] = _properties(node["properties"], definitions)
    if node.get("type") == "integer":
        result["maximum"] = min(result.get("maximum", WHOLE_NUMBER_MAX), WHOLE_NUMBER_MAX)
        if result.get("exclusiveMaximum", 0) > WHOLE_NUMBER_MAX:
            del result["exclusiveMaximum"]
    if "enum" in node:
        booleans = sorted({BOOLEAN_WORDS[word] for word in node["enum"] if word in BOOLEAN_WORDS})
        if booleans:
            result = {key: value for key, value in result.items() if key != "type"} | {"enum": [*node["enum"], *booleans]}
    return _one_type(result)


def _properties(properties: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in properties.items():
        found[name] = _plain(value, definitions)
        if name in BOOLEAN_WORDS:
            found[str(BOOLEAN_WORDS[name]).lower()] = {**found[name], "description": f"What Helm makes of an unquoted `{name}:`."}
    return found


def _one_type(node: dict[str, Any]) -> dict[str, Any]:
    """`anyOf: [something, null]` as one type with null, so that a mistake is reported in one line."""
    choices = node.get("anyOf", [])
    if len(choices) != 2 or choices[1] != {"type": "null"}:
        return node
    first = choices[0]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if "enum" in first:
        return {**first, "enum": [*first["enum"], None], **rest, "type": [first["type"], "null"]}
    return {**first, **rest, "type": [first["type"], "null"]}


def _require(schema: dict[str, Any], section: type[BaseModel], depth: int = 0) -> None:
    """Everything that values.yaml gives must be there after the merge: a null for it is a mistake, to us too."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            _require(schema["properties"][name], inner, depth + 1)
        elif not field.is_required() and not _has_default(name, field, depth):
            continue
        schema["required"] = [*schema.get("required", []), *([] if name in schema.get("required", []) else [name])]


def _words(section: type[BaseModel], path: str) -> list[str]:
    found = []
    for name, field in section.model_fields.items():
        place = f"{path}.{name}".lstrip(".")
        if name in BOOLEAN_WORDS:
            found.append(place)
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found += _words(part, place)
            elif isinstance(part, str) and part in BOOLEAN_WORDS:
                found.append(f"{place}={part}")
    return found


def _parts(annotation: Any) -> list[Any]:
    """A type and all that it is made of, literals included."""
    inner = [part for one in getattr(annotation, "__args__", ()) for part in _parts(one)]
    return [annotation, *inner]


def _section_lines(section: type[BaseModel], default: BaseModel | None, depth: int) -> list[str]:
    """The lines of a section of the values file, each field with its default.

    default: what the section holds where the file says nothing; None: each field's own default.
    """
    lines = []
    for name, field in section.model_fields.items():
        value = field.default if default is None else getattr(default, name)
        inner = field.annotation
        if depth == 0:
            lines.append("")
        lines += _comment(field, depth)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            below = _section_lines(inner, value if isinstance(value, BaseModel) else None, depth + 1)
            empty = all(line.lstrip().startswith("#") for line in below)
            lines.append(f"{'  ' * depth}{_text(name)}:{' {}' if empty else ''}")
            lines += below
        else:
            lines.append("  " * depth + _value_line(name, field, value, depth))
    return lines


def _comment(field: FieldInfo, depth: int) -> list[str]:
    extra = field.json_schema_extra
    change = extra["change"] if isinstance(extra, dict) else ""
    lead = "  " * depth + "# "
    return textwrap.wrap(f"{field.description} ({change})", COMMENT_WIDTH, initial_indent=lead, subsequent_indent=lead)


def _value_line(name: str, field: FieldInfo, value: Any, depth: int) -> str:
    if value is PydanticUndefined:
        return f"# {_text(name)}:"
    return f"{'' if _has_default(name, field, depth) else '# '}{_text(name)}: {_text(_plain_value(value))}"


def _has_default(name: str, field: FieldInfo, depth: int) -> bool:
    """Whether values.yaml gives a value: not for the release's name, nor where null is one, which Helm's merge would take away."""
    return field.default is not PydanticUndefined and type(None) not in _parts(field.annotation) and (depth, name) != (0, "name")


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(one) for one in value]
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).removesuffix("...\n").strip()


def main(arguments: list[str]) -> int:
    """Print one of the two generated files. Returns the exit status: 2 for other arguments."""
    if arguments == ["schema"]:
        print(json.dumps(values_schema(), indent=2))
    elif arguments == ["values"]:
        print(values_file(), end="")
    else:
        print("usage: python -m frostline_contract.job.values_schema schema|values", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
