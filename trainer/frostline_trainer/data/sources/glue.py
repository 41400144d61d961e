"""The GLUE tasks' own TSV files, as the benchmark distributes them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frostline_contract.job import Job
from frostline_trainer.data.records import Part, Texts
from frostline_trainer.data.sources.files import file_digest, file_in, read_text_file, required_path
from frostline_trainer.data.sources.tables import class_of, number_of
from frostline_trainer.data.split import digest_of


@dataclass(frozen=True)
class GlueTask:
    """Layout of one task's files and its metric.

    Attributes:
        first, second, label: column names, or column numbers if the file has no header.
        metric: the task's own metric.
        names: labels as words, by class.
        regression: whether the label is a score.
        short_rows: how many malformed rows the published file is known to have. Up to so many rows with too few fields are left
            out, more are an error.
    """

    first: str | int
    label: str | int
    metric: str
    second: str | int | None = None
    names: tuple[str, ...] = ("0", "1")
    regression: bool = False
    short_rows: int = 0

    @property
    def header(self) -> bool:
        """Whether the file begins with a line of column names."""
        return isinstance(self.first, str)


ENTAILMENT = ("entailment", "not_entailment")

TASKS = {
    "cola": GlueTask(first=3, label=1, metric="matthews"),
    "sst2": GlueTask("sentence", "label", "accuracy"),
    "mrpc": GlueTask("#1 String", "Quality", "f1", second="#2 String"),
    "stsb": GlueTask("sentence1", "score", "pearson", second="sentence2", names=(), regression=True),
    "qqp": GlueTask("question1", "is_duplicate", "f1", second="question2", short_rows=8),
    "mnli": GlueTask("sentence1", "gold_label", "accuracy", second="sentence2", names=("entailment", "neutral", "contradiction")),
    "qnli": GlueTask("question", "label", "accuracy", second="sentence", names=ENTAILMENT),
    "rte": GlueTask("sentence1", "label", "accuracy", second="sentence2", names=ENTAILMENT),
    "wnli": GlueTask("sentence1", "label", "accuracy", second="sentence2"),
}


def glue_task(job: Job) -> GlueTask:
    """The job's task. Raises ValueError that lists the known ones."""
    name = job.data.glue_task
    if name not in TASKS:
        raise ValueError(f"data.glue_task is {name!r}; known: {', '.join(TASKS)}")
    return TASKS[name]


def read_glue(job: Job, path: str | None, part: Part) -> Texts:
    """A task's TSV file, or its folder: train.tsv for data.path, dev.tsv (dev_matched.tsv) for data.test_path.

    Raises ValueError with file, line, value and remedy for malformed rows, missing columns and unknown labels.
    """
    task = glue_task(job)
    if task.regression and job.task.num_labels not in (None, 1):
        raise ValueError(
            f"task.num_labels is {job.task.num_labels}, GLUE's {job.data.glue_task} is a regression; set 1 or leave it out"
        )
    place = required_path(path, "glue", "a task's folder or TSV file")
    names = ("train.tsv",) if part == "train" else ("dev.tsv", "dev_matched.tsv")
    file = file_in(place, names, "a task's folder or TSV file")
    first, second, labels, numbers = _rows(file, task)
    if not first:
        raise ValueError(f"{file}: holds no rows; give the task's TSV file as GLUE distributes it")
    return Texts(
        first,
        second,
        np.array(labels),
        digest_of("glue", job.data.glue_task, file_digest(file)),
        where=lambda index: f"{file}:{numbers[index]}",
        label_names=task.names,
    )


def _rows(file: Path, task: GlueTask) -> tuple[list[str], list[str], list[int | float], list[int]]:
    # Fields are never quoted: a lone quotation mark is part of the text.
    lines = [line.rstrip("\r") for line in read_text_file(file).split("\n")]
    header = lines[0].split("\t") if task.header else []
    columns = [_column(name, header, file) for name in (task.first, task.second, task.label) if name is not None]
    width = len(header) if task.header else max(columns) + 1
    first: list[str] = []
    second: list[str] = []
    labels: list[int | float] = []
    numbers: list[int] = []
    short = 0
    for number, line in enumerate(lines[1:] if task.header else lines, start=2 if task.header else 1):
        fields = line.split("\t")
        if not line:
            continue
        if len(fields) < width:
            short += 1
            if short > task.short_rows:
                raise ValueError(
                    f"{file}:{number}: {len(fields)} fields, expected {width}; correct the row (fields are tab-separated)"
                )
            continue
        first.append(fields[columns[0]])
        if task.second is not None:
            second.append(fields[columns[1]])
        labels.append(_label(fields[columns[-1]], task, f"{file}:{number}"))
        numbers.append(number)
    return first, second, labels, numbers


def _column(name: str | int, header: list[str], file: Path) -> int:
    if isinstance(name, int):
        return name
    if name not in header:
        raise ValueError(f"{file}:1: has no column {name!r} (columns: {', '.join(header)}); give the file as GLUE distributes it")
    return header.index(name)


def _label(text: str, task: GlueTask, where: str) -> int | float:
    if task.regression:
        return number_of(text, where)
    if task.names == ("0", "1"):
        return class_of(text, where)
    if text not in task.names:
        raise ValueError(f"{where}: label {text!r} is none of {', '.join(task.names)}; correct the row")
    return task.names.index(text)
