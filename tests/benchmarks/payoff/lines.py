"""The results: one JSON line for each finished piece of work, appended at its end, so that hours may be spread over many goes."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.payoff.tasks import ROOT

FILE = ROOT / "docs" / "comparison" / "payoff.jsonl"
Line = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """The identity of a line's piece of work.

    Attributes:
        kind: prepared (cap, numerics, candidates), candidate (some steps of a static placement), time (a whole run on devices of
            fixed speed), accuracy (a whole run of one worker).
        scale: whole, or small: the task's smaller variant.
        cap: capped or free.
        arm: static, or one of the four switches; for a candidate its placement.
        pair: number that interleaved runs of one seed share.
    """

    kind: str
    task: str
    scale: str
    cap: str = "free"
    arm: str = ""
    seed: int = 0
    pair: int = 0

    def words(self) -> str:
        parts = (self.kind, self.task, self.scale, self.cap, self.arm, self.seed, self.pair)
        return " ".join(str(part) for part in parts if part != "")


FIELDS = tuple(Key.__dataclass_fields__)


def key_of(line: Line) -> Key:
    return Key(**{name: line[name] for name in FIELDS})


class Lines:
    """All lines of a file; of two lines with one key the later one counts."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._known: dict[Key, Line] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            found = json.loads(line)
            self._known[key_of(found)] = found

    def get(self, key: Key) -> Line | None:
        return self._known.get(key)

    def of(self, **wanted: Any) -> list[Line]:
        """Return the lines with the given values of fields."""
        return [line for line in self._known.values() if all(line[name] == value for name, value in wanted.items())]

    def add(self, key: Key, figures: Line) -> Line:
        """Add a line here and to the file. One call writes the line, so that lines of two simultaneous goes do not mix."""
        line = {**key.__dict__, **figures}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, (json.dumps(line, allow_nan=False) + "\n").encode())
        finally:
            os.close(handle)
        self._known[key] = line
        return line


def by_seed(lines: Iterable[Line], name: str) -> dict[int, Any]:
    """Return one figure of each seed's line."""
    return {line["seed"]: line[name] for line in lines if line.get(name) is not None}
