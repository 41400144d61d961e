"""Values that come from Python code, as a job file has them: paths, numpy's numbers and sequences become plain data."""

import json
import operator
import os
from collections.abc import Mapping
from typing import Any

from frostline_controller.local_run.errors import UserMistake

SHOWN_CHARACTERS = 80


def plain_value(field: str, value: Any) -> Any:
    """Return a value as plain data. Raises UserMistake, with the field's name, for what no job file can hold."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(field, one) for key, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain_value(field, one) for one in value]
    if callable(as_python := getattr(value, "tolist", None)):  # an array or a scalar of numpy or torch
        return plain_value(field, as_python())
    raise UserMistake(f"{field}: {_shown(value)} is no value of a job file; give a number, a text, a path, a list or a mapping")


def several(field: str, values: Any) -> list[Any]:
    """Return the values of a sequence as plain data. Raises UserMistake where one value is given, a text included."""
    try:
        given = None if isinstance(values, str | bytes | Mapping) else list(values)
    except TypeError:
        given = None
    if given is None:
        raise UserMistake(f"{field}: {_shown(values)} is no list of values; write [{_shown(values)}]")
    return [plain_value(field, value) for value in given]


def whole_numbers(field: str, values: Any, least: int = 0) -> list[int]:
    """Return a sequence of whole numbers from `least` on. Raises UserMistake."""
    return [whole_number(field, value, least) for value in several(field, values)]


def whole_number(field: str, value: Any, least: int = 0) -> int:
    """Return a whole number from `least` on. Raises UserMistake."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise UserMistake(f"{field}: {_shown(value)} is no whole number from {least} on")
    return number


def settings_of(values: Mapping[str, Any]) -> list[str]:
    """Return the values as `field=value`; values are written as JSON, which is YAML. Raises UserMistake."""
    return [f"{field}={json.dumps(plain_value(field, value))}" for field, value in values.items()]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
