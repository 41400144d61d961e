"""CSV and JSON Lines, read by the `datasets` library: labelled texts, pairs of texts, or running text.

The library's errors do not name a malformed row, so a file that it refuses is read again just to find the row.
"""

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frostline_contract.job import Job
from frostline_contract.scratch_folder import ScratchFolder
from frostline_trainer.data.records import Documents, Part, Texts
from frostline_trainer.data.sources.files import file_digest, read_text_file, required_path
from frostline_trainer.data.split import digest_of

FIRST_ROW = {"csv": 2, "jsonl": 1}
"""Line number of the first record, as in an editor: a CSV has a header."""


def read_csv(job: Job, path: str | None, part: Part) -> Texts | Documents:
    """A CSV with a header row. See `_read`."""
    return _read(job, path, "csv", _csv_columns, _csv_fault)


def read_jsonl(job: Job, path: str | None, part: Part) -> Texts | Documents:
    """One JSON object a line. See `_read`."""
    return _read(job, path, "jsonl", _jsonl_columns, _jsonl_fault)


def _read(
    job: Job, path: str | None, kind: str, load: Callable[[Path, Path], dict[str, list]], fault: Callable[[Path], str | None]
) -> Texts | Documents:
    """Read the columns that data.columns names (default: text, optional text_pair, label; for language modelling only text).

    Args:
        job: the job.
        path: the file.
        kind: "csv" or "jsonl".
        load: reads a file's columns with the help of a scratch folder.
        fault: why a file cannot be read, in words; None if it can.

    Raises:
        ValueError: with file, row, value and remedy: malformed rows, missing columns, or labels that are not numbers.
    """
    file = required_path(path, kind, f"a {kind} file")
    if not file.is_file():
        raise ValueError(f"{file}: is a folder; give a {kind} file")
    if not read_text_file(file).strip():
        raise ValueError(f"{file}: is empty; give a {kind} file with at least one record")
    reason = fault(file)
    if reason:
        raise ValueError(reason)
    with ScratchFolder() as scratch:
        try:
            table = load(file, scratch)
        except Exception as error:
            first_line = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{file}: the datasets library refuses it ({first_line}); correct the file") from error
    return _records(job, file, kind, table)


def _records(job: Job, file: Path, kind: str, table: dict[str, list]) -> Texts | Documents:
    def where(index: int) -> str:
        return f"{file}:{index + FIRST_ROW[kind]}"

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
    if isinstance(value, bool) or not text.lstrip("-").isdigit():
        raise ValueError(f"{where}: label {value!r} is no integer; number the classes from 0")
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


def _column(table: dict[str, list], name: str, file: Path) -> list:
    if name not in table:
        raise ValueError(f"{file}: has no column {name!r} (columns: {', '.join(table)}); name yours in data.columns")
    return table[name]


def _strings(table: dict[str, list], name: str, file: Path, where: Callable[[int], str]) -> list[str]:
    values = _column(table, name, file)
    for index, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where(index)}: {name} is {value!r}; give a text or remove the row")
    return values


def _csv_columns(file: Path, scratch: Path) -> dict[str, list]:
    from datasets import Dataset, Features, Value

    with file.open(encoding="utf-8-sig", newline="") as stream:
        header = next(csv.reader(stream))
    # Every column as text: type inference would make a missing value of a review "None" or "NA".
    features = Features({name: Value("string") for name in header})
    with _quiet():
        table = Dataset.from_csv(
            str(file), features=features, cache_dir=str(scratch), keep_in_memory=True, keep_default_na=False, encoding="utf-8-sig"
        )
    return {name: table[name][:] for name in table.column_names}


def _jsonl_columns(file: Path, scratch: Path) -> dict[str, list]:
    from datasets import Dataset

    with _quiet():
        table = Dataset.from_json(str(file), cache_dir=str(scratch), keep_in_memory=True)
    return {name: table[name][:] for name in table.column_names}


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


def _csv_fault(file: Path) -> str | None:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            header = next(rows)
            if len(set(header)) < len(header):
                return f"{file}:1: the header names a column twice ({', '.join(header)}); rename one"
            count = 0
            for row in rows:
                if not row:
                    return f"{file}:{rows.line_num}: an empty row; remove it"
                if len(row) != len(header):
                    return f"{file}:{rows.line_num}: {len(row)} fields, the header has {len(header)}; quote or correct the row"
                count += 1
        except csv.Error as error:
            return f"{file}:{rows.line_num}: malformed row ({error}); quote or correct it"
    return None if count else f"{file}: has a header and no rows; give a csv file with at least one record"


def _jsonl_fault(file: Path) -> str | None:
    keys: Sequence[str] | None = None
    for number, line in enumerate(read_text_file(file).removesuffix("\n").split("\n"), start=1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            return f"{file}:{number}: no valid JSON ({error.msg} at column {error.colno}); correct the row"
        if not isinstance(value, dict):
            return f"{file}:{number}: holds a JSON {type(value).__name__}, expected an object a line; correct the row"
        if keys is None:
            keys = list(value)
        missing = [key for key in keys if key not in value]
        if missing:
            return f"{file}:{number}: lacks {missing[0]!r}, which the first row has; add it"
    return None
