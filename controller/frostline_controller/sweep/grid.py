"""The grid of a sweep: varied fields of the job with their values, and every combination of these."""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from frostline_contract.job import JobError
from frostline_contract.job.yaml_text import read_yaml
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.python_values import several

RUNS_MAX = 1000
RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
"""Whole numbers from the first to the last, as in 0-3."""
NAMED_BY_SWEEP = "name"


@dataclass(frozen=True)
class Axis:
    """A dotted field of the job, and its values in order: plain data, as in a job file."""

    field: str
    values: tuple[Any, ...]


def parse_axis(text: str) -> Axis:
    """Return the axis of `--vary field=values`: `a,b,c`, a range `0-3`, both, or a YAML list where values have commas.

    Raises UserMistake.
    """
    field, equals, values = text.partition("=")
    if not equals or not field:
        raise UserMistake(f"--vary {text!r}: write it as section.field=a,b,c or section.field=0-3")
    try:
        given = _listed(values)
    except JobError as error:
        raise UserMistake(f"--vary {text!r}: {error}") from None
    return checked_axis(field, given)


def checked_axis(field: str, values: Iterable[Any]) -> Axis:
    """Return the axis of a field with each of the values once. Raises UserMistake where there are none, far too many, or what no
    job file can hold."""
    once = {json.dumps(value, sort_keys=True): value for value in several(f"--vary {field}", values)}
    if not once:
        raise UserMistake(f"--vary {field}: names no value; write {field}=a,b,c or {field}=0-3")
    _check_count(len(once))
    return Axis(field, tuple(once.values()))


def check_axes(axes: Sequence[Axis], overrides: Sequence[str]) -> None:
    """Raise UserMistake where a field is varied twice, is also given by --set, or cannot be varied by a sweep."""
    if not axes:
        raise UserMistake("a sweep varies something: give --vary section.field=a,b,c once or more often")
    for place, axis in enumerate(axes):
        if axis.field == NAMED_BY_SWEEP:
            raise UserMistake("--vary name: a sweep names its runs itself; give what their names begin with by --set name=")
        for other in axes[:place]:
            if overlap(axis.field, other.field):
                both = "twice" if axis.field == other.field else f"within --vary {other.field}"
                raise UserMistake(f"--vary {axis.field}: is varied {both}; write all its values in one --vary")
        for override in overrides:
            field = override.partition("=")[0]
            if overlap(axis.field, field):
                raise UserMistake(f"--vary {axis.field}: --set {override} fixes it; leave one of the two out")
    _check_count(_product(len(axis.values) for axis in axes))


def combinations(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Return the values by field, one mapping for each run: the last axis changes fastest."""
    return [
        dict(zip((axis.field for axis in axes), values, strict=True)) for values in itertools.product(*(a.values for a in axes))
    ]


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """Return the last part of each field, where no other field has the same; else the whole field."""
    every = list(fields)
    ends = [field.rpartition(".")[2] for field in every]
    return {field: end if ends.count(end) == 1 else field for field, end in zip(every, ends, strict=True)}


def _listed(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        value = read_yaml(text)
        return value if isinstance(value, list) else [value]
    values: list[Any] = []
    for part in text.split(","):
        if found := RANGE.fullmatch(part.strip()):
            values += _range(*(int(bound) for bound in found.groups()))
        elif part.strip():
            values.append(read_yaml(part))
        elif len(text.split(",")) > 1:
            raise JobError("a value is missing beside a comma")
    return values


def _range(first: int, last: int) -> range:
    if last < first:
        raise JobError(f"the range {first}-{last} runs backwards; write {last}-{first}")
    _check_count(last - first + 1)
    return range(first, last + 1)


def _check_count(count: int) -> None:
    if count > RUNS_MAX:
        raise UserMistake(f"--vary: {count:,} runs are more than {RUNS_MAX}; vary fewer fields, or name fewer values")


def _product(counts: Iterable[int]) -> int:
    product = 1
    for count in counts:
        product *= count
    return product


def overlap(field: str, other: str) -> bool:
    """Whether two dotted fields are equal, or one lies in the other."""
    return f"{field}.".startswith(f"{other}.") or f"{other}.".startswith(f"{field}.")
