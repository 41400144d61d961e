"""YAML text to plain data: mappings, lists, texts, finite numbers, booleans and null, each checked before anybody uses it."""

import math
import re
from pathlib import Path
from typing import Any

import yaml

VALUES_MAX = 100_000
"""Values of a job file, aliases counted as often as they are used: a few lines of aliases can stand for gigabytes."""
DEPTH_MAX = 50
WHOLE_NUMBER_END = 2**63
SHOWN_CHARACTERS = 80


class JobError(ValueError):
    """A mistake in a job file; the text names each field, its value and what to do."""


class _Yaml(yaml.SafeLoader):
    """YAML 1.2's booleans (true and false only, so that `mode: off` and the key `off:` stay words) and its floats without a point
    (1e-12, as JSON writes them), and each key once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        """Two escapes by which JSON writes one character (`\\ud83d\\ude00`) are that character."""
        return super().construct_yaml_str(node).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > VALUES_MAX:
            raise yaml.MarkedYAMLError(problem=f"more than {VALUES_MAX} values are merged", problem_mark=node.start_mark)


_Yaml.add_constructor("tag:yaml.org,2002:str", _Yaml.construct_yaml_str)
_Yaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
FLOAT_WITHOUT_A_POINT = (
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)  # fmt: skip
_Yaml.add_implicit_resolver(*FLOAT_WITHOUT_A_POINT)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """libyaml's, where PyYAML was built with it: the same text in a third of the time. A text that `_Yaml` takes for a number is
    written in quotes."""


_Dumper.add_implicit_resolver(*FLOAT_WITHOUT_A_POINT)


def write_yaml(value: Any) -> str:
    """Plain data as YAML text, for people; `read_yaml` reads the same from it. Raises yaml.YAMLError for what is not plain."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(text: str) -> Any:
    """Plain data from YAML text. Raises JobError."""
    try:
        loader = _Yaml(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise JobError("no valid YAML: it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        raise JobError(f"no valid YAML: {' '.join(str(error).split())}") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # A tag such as !!timestamp or !!int over a text that is none: the library lets the conversion's own error through.
        raise JobError(f"no valid YAML: {' '.join(str(error).split())}") from None
    return plain(value)


def read_mapping(path: Path, expected: str, remedy: str) -> dict[str, Any]:
    """Plain data of a YAML file that people write: one mapping.

    Args:
        path: the file.
        expected: the keys that it should have, in words, for whoever gives a list or a text.
        remedy: what to do where the file cannot be read.

    Raises:
        JobError: names the file and what is wrong with it.
    """
    try:
        value = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start}); {remedy}") from None
    except JobError as error:
        raise JobError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise JobError(f"{path}: holds {type(value).__name__}, expected a mapping with {expected}")
    return value


def plain(value: Any) -> Any:
    """A copy of nested data, keys as texts. Raises JobError that names the place of whatever a job file cannot hold."""
    left = VALUES_MAX

    def copied(one: Any, path: str, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise JobError(f"{path}: more than {VALUES_MAX} values, aliases counted as often as they are used; write fewer")
        if depth > DEPTH_MAX:
            raise JobError(f"{_shown(path)}: nested more than {DEPTH_MAX} deep; write it flatter")
        if isinstance(one, dict):
            return {_key(key, path): copied(inner, f"{path}.{key}".lstrip("."), depth + 1) for key, inner in one.items()}
        if isinstance(one, list | tuple):
            return [copied(inner, f"{path}.{index}".lstrip("."), depth + 1) for index, inner in enumerate(one)]
        return _scalar(one, path or "the value")

    return copied(value, "", 0)


def _key(key: Any, path: str) -> str:
    if isinstance(key, str):
        return _text(key, f"{path}: the key {_shown(key)!r}")
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if isinstance(key, float) and math.isfinite(key):
        return repr(key)
    raise JobError(f"{path or 'the value'}: the key {_shown(key)} is {_kind(key)}; write a word, in quotes where need be")


def _scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if not -WHOLE_NUMBER_END <= value < WHOLE_NUMBER_END:
            raise JobError(f"{path} is a whole number beyond 64 bits; give a smaller one")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JobError(f"{path} is {value}; give a finite number")
        return value
    raise JobError(f"{path} is {_shown(value)}, {_kind(value)}; write a text (in quotes), a number, a list or a mapping")


def _text(value: str, path: str) -> str:
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise JobError(f"{path} is {_shown(value)!r}, which holds characters that no file or name can hold; leave them out")
    return value


def _kind(value: Any) -> str:
    return {"date": "a date", "datetime": "a time", "bytes": "binary", "set": "a set", "NoneType": "empty"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
