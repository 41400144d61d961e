"""CSV, read by the `datasets` library, and JSON Lines: labelled texts, pairs of texts, or running text.

The library's errors do not name a malformed row, and its JSON reader takes texts that look like dates for dates. So the rows of a
CSV are checked before it reads them, and JSON is read here.
"""

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frostline_contract.job import Job
from frostline_contract.scratch_folder import ScratchFolder
from frostline_trainer.data.records import Documents, Part, Texts
from frostline_trainer.data.sources.files import check_characters, file_digest, read_text_file, required_path
from frostline_trainer.data.split import digest_of

FIELD_CHARACTERS_MAX = 2**31 - 1
"""The longest field of a CSV; a number that every platform's C long holds. Python's own limit is 131072 characters."""
csv.field_size_limit(FIELD_CHARACTERS_MAX)

WHOLE_NUMBER = re.compile(r"-?[0-9]+")
CLASS_DIGITS_MAX = 18
"""As many digits of a class number as 64 bits hold."""


@dataclass(frozen=True)
class Table:
    """The records of a file.

    Attributes:
        columns: the values of each column, by its name.
        lines: the line at which each record begins, as in an editor.
    """

    columns: dict[str, list]
    lines: Sequence[int]


def read_csv(job: Job, path: str | None, part: Part) -> Texts | Documents:
    """A CSV with a header row. See `_read`."""
    return _read(job, path, "csv", _csv_table)


def read_jsonl(job: Job, path: str | None, part: Part) -> Texts | Documents:
    """One JSON object a line. See `_read`."""
    return _read(job, path, "jsonl", _jsonl_table)


def _read(job: Job, path: str | None, kind: str, load: Callable[[Path], Table]) -> Texts | Documents:
    """Read the columns that data.columns names (default: text, optional text_pair, label; for language modelling only text).

    Args:
        job: the job.
        path: the file.
        kind: "csv" or "jsonl".
        load: reads a file. Raises ValueError where it cannot be read.

    Raises:
        ValueError: with file, row, value and remedy: malformed rows, missing columns, or labels that are not numbers.
    """
    file = required_path(path, kind, f"a {kind} file")
    if not file.is_file():
        raise ValueError(f"{file}: is a folder; give a {kind} file")
    if not read_text_file(file).strip():
        raise ValueError(f"{file}: is empty; give a {kind} file with at least one record")
    return _records(job, file, kind, load(file))


def _records(job: Job, file: Path, kind: str, table: Table) -> Texts | Documents:
    def where(index: int) -> str:
        return f"{file}:{table.lines[index]}"

    columns = {"text": "text", "label": "label", **job.data.columns}
    known = ("text", "text_pair", "label")
    for role in columns:
        if role not in known:
            raise ValueError(f"data.columns.{role}: unknown; known: {', '.join(known)}")
    digest = digest_of(kind, file_digest(file), columns)
    if job.task.kind == "language_modeling":
        return Documents(_strings(table, columns["text"], file, where), digest)
    first = _strings(table, columns["text"], file, where)
    second = _strings(table, columns["text_pair"], file, where) if "text_pair" in columns else []
    values = _column(table, columns["label"], file)
    convert = number_of if job.task.num_labels == 1 else class_of
    labels = np.array([convert(value, where(index)) for index, value in enumerate(values)])
    return Texts(first, second, labels, digest, where)


def class_of(value: Any, where: str) -> int:
    """A class number. Raises ValueError."""
    text = str(value).strip()
    if isinstance(value, bool) or not WHOLE_NUMBER.fullmatch(text):
        raise ValueError(f"{where}: label {value!r} is no integer; number the classes from 0")
    if len(text) > CLASS_DIGITS_MAX:
        raise ValueError(f"{where}: label {text[:20]} has more than {CLASS_DIGITS_MAX} digits; number the classes from 0")
    return int(text)


def number_of(value: Any, where: str) -> float:
    """A regression target. Raises ValueError."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: label {value!r} is no finite number; regression (task.num_labels 1) needs one")
    return number


def _column(table: Table, name: str, file: Path) -> list:
    if name not in table.columns:
        raise ValueError(f"{file}: has no column {name!r} (columns: {', '.join(table.columns)}); name yours in data.columns")
    return table.columns[name]


def _strings(table: Table, name: str, file: Path, where: Callable[[int], str]) -> list[str]:
    values = _column(table, name, file)
    for index, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where(index)}: {name} is {value!r}; give a text or remove the row")
        check_characters(value, f"{where(index)}: {name}")
    return values


def _csv_table(file: Path) -> Table:
    header, lines = _csv_rows(file)
    with ScratchFolder() as scratch:
        try:
            return Table(_csv_columns(file, header, scratch), lines)
        except Exception as error:
            first_line = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{file}: the datasets library refuses it ({first_line}); correct the file") from error


def _csv_rows(file: Path) -> tuple[list[str], Sequence[int]]:
    """Return the names of the columns, and the line at which each record begins. Raises ValueError that names a malformed row."""
    lines = array("q")
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, strict=True)
        begins = 1
        try:
            header = next(rows)
            if len(set(header)) < len(header):
                raise ValueError(f"{file}:1: the header names a column twice ({', '.join(header)}); rename one")
            begins = rows.line_num + 1
            for row in rows:
                if not row:
                    raise ValueError(f"{file}:{begins}: an empty row; remove it")
                if len(row) != len(header):
                    raise ValueError(
                        f"{file}:{begins}: {len(row)} fields, the header has {len(header)}; quote or correct the row"
                    )
                lines.append(begins)
                begins = rows.line_num + 1
        except csv.Error as error:
            raise ValueError(f"{file}:{begins}: malformed row ({error}); quote or correct it") from None
    if not lines:
        raise ValueError(f"{file}: has a header and no rows; give a csv file with at least one record")
    return header, lines


def _csv_columns(file: Path, header: list[str], scratch: Path) -> dict[str, list]:
    from datasets import Dataset, Features, Value

    # Every column as text: type inference would make a missing value of a review "None" or "NA". Names are given, since the
    # library has its own for a column without one; it would skip a row of spaces, and all later rows would have another's line.
    features = Features({name: Value("string") for name in header})
    with _quiet():
        table = Dataset.from_csv(
            str(file), features=features, cache_dir=str(scratch), keep_in_memory=True, keep_default_na=False,
            encoding="utf-8-sig", column_names=header, header=0, skip_blank_lines=False,
        )  # fmt: skip
    return {name: table[name][:] for name in header}


def _quiet() -> Any:
    """Suppress the library's progress bars, so that a worker's terminal shows only the run's progress."""
    from contextlib import contextmanager

    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    @contextmanager
    def silence():
        were_off = are_progress_bars_disabled()
        disable_progress_bars()
        try:
            yield
        finally:
            if not were_off:
                enable_progress_bars()

    return silence()


def _jsonl_table(file: Path) -> Table:
    columns: dict[str, list] = {}
    lines = read_text_file(file).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        record = _json_object(line, f"{file}:{number}")
        if number == 1:
            columns = {name: [] for name in record}
        for name, values in columns.items():
            if name not in record:
                raise ValueError(f"{file}:{number}: lacks {name!r}, which the first row has; add it")
            values.append(record[name])
    return Table(columns, range(1, len(lines) + 1))


def _json_object(line: str, where: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{where}: names {twice!r} twice; remove one")
        return found

    try:
        value = json.loads(line, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: no valid JSON ({error.msg} at column {error.colno}); correct the row") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: holds a JSON {type(value).__name__}, expected an object a line; correct the row")
    return value
