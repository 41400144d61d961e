"""Finding and reading input files, with errors that say which job field to correct."""

import hashlib
import os
import re
from pathlib import Path

HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A surrogate: half of a pair that stands for one character in UTF-16 and in JSON's escapes, and for nothing alone."""


def required_path(path: str | None, source: str, what: str) -> Path:
    """The path that the job gives. Raises ValueError if it is missing, does not exist or cannot be read."""
    if path is None:
        raise ValueError(f"data.path is not set; data.source {source} needs {what}")
    place = Path(path)
    try:
        is_there = place.exists()
        reason = "" if not is_there or os.access(place, os.R_OK) else "Permission denied"
    except OSError as error:  # in a folder that this user may not enter, for one
        is_there, reason = True, error.strerror
    if reason:
        raise ValueError(f"{place}: cannot be read ({reason}); let this user read it, or set data.path (or data.test_path) anew")
    if not is_there:
        raise ValueError(f"{place}: not found; set data.path (or data.test_path) to {what}")
    return place


def file_in(place: Path, names: tuple[str, ...], what: str) -> Path:
    """`place` itself or, if it is a folder, the first of `names` in it. Raises ValueError if there is none."""
    if place.is_file():
        return place
    for name in names:
        if (place / name).is_file():
            return place / name
    raise ValueError(f"{place}: a folder without {' or '.join(names)}; give {what}")


def read_text_file(file: Path) -> str:
    """The file as UTF-8, without a byte order mark. Raises ValueError that names the offending byte."""
    try:
        return file.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: byte {error.start} is no UTF-8 ({error.reason}); convert the file to UTF-8") from error
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error


def check_characters(text: str, what: str) -> None:
    """Raise ValueError for half a character, which no tokenizer reads: JSON holds one where a text was cut short."""
    half = HALF_CHARACTER.search(text)
    if half:
        raise ValueError(f"{what}: holds {half[0]!r}, half a character, at {half.start()}; correct or remove it")


def file_digest(file: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
