"""Readers of append-only JSON-lines files, whose writer may still be running or may have been killed within a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Every complete line of `path` as a mapping; nothing where the file does not exist.

    A last line without its newline was torn by a killed writer and is left out. Any other line that is not a JSON object raises
    ValueError with its line number.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield _parse(line, f"{path}, line {number}")


class JsonlTail:
    """Follows a growing JSON-lines file: each call of `new` returns the complete lines since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """The lines that were completed since the last call, oldest first."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        start, self._offset = self._offset, self._offset + len(complete)
        return [_parse(line, f"{self._path}, after byte {start}") for line in complete.splitlines() if line.strip()]


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: no JSON ({error}): {_shown(line)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: holds {type(value).__name__}, expected an object: {_shown(line)}")
    return value


def _shown(line: bytes) -> str:
    """The beginning of a line for a message; only its length where it is not text (a lost write often leaves thousands of zero
    bytes)."""
    text = line[:60].decode(errors="replace").strip()
    return repr(text) if text.isprintable() else f"{len(line)} bytes that are no text"
