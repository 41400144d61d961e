"""Record types, one for each kind of task: the data that a source reads, before it is cut into splits and made into tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from frostline_trainer.data.decoder import Wanted
from frostline_trainer.data.decoding import Decoders

Part = Literal["train", "test"]
"""The job's input that a source reads: "train" (for the splits train and guard) or "test"."""


@dataclass(frozen=True)
class Images:
    """Labelled images, N of them, numbered from 0.

    Attributes:
        pixels: sample number -> float32 [channels, size, size] with values in 0..1, before normalisation.
        labels: class numbers, int64 [N].
        image_size: height and width of an image, in pixels.
        channels: 1 for grey, 3 for colour.
        digest: hex SHA-256 of the content.
        where: sample number -> place for error messages.
        label_names: class names by number, empty if classes are bare numbers.
        rescale_factor: factor that scaled raw pixel values to 0..1.
        wanted: sample number -> its file, if files are decoded on demand.
        decoders: processes that decode these files, if any.
    """

    pixels: Callable[[int], np.ndarray]
    labels: np.ndarray
    image_size: int
    channels: int
    digest: str
    where: Callable[[int], str]
    label_names: tuple[str, ...] = ()
    rescale_factor: float = 1 / 255
    wanted: Callable[[int], Wanted] | None = None
    decoders: Decoders | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def several(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """`pixels` of each, in order."""
        if self.wanted is None or self.decoders is None:
            return [self.pixels(number) for number in numbers]
        return self.decoders.pixels([self.wanted(number) for number in numbers])


@dataclass(frozen=True)
class Texts:
    """Labelled texts or pairs of texts, N of them.

    Attributes:
        first: the texts, or the first text of each pair.
        second: the second text of each pair; empty: there are no pairs.
        labels: int64 [N], or float64 [N] for regression.
        digest: hex SHA-256 of the content.
        where: text number -> place for error messages.
        label_names: class names by number, empty if classes are bare numbers.
    """

    first: list[str]
    second: list[str]
    labels: np.ndarray
    digest: str
    where: Callable[[int], str]
    label_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Question:
    """One SQuAD question. `answers` has (text, first character in the context) of each reference answer, at least one."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Questions:
    """SQuAD's questions in the file's order. `digest` is that of the file's content, which names the data set."""

    items: list[Question]
    digest: str

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Documents:
    """Running texts for language modelling, in reading order."""

    texts: list[str]
    digest: str

    def __len__(self) -> int:
        return len(self.texts)


Records = Images | Texts | Questions | Documents

R = TypeVar("R", Images, Texts)


def check_labels(records: Images | Texts, num_labels: int, remedy: str) -> None:
    """Raise ValueError with the first record whose label is outside 0 .. num_labels - 1, its place and a remedy."""
    wrong = np.flatnonzero((records.labels < 0) | (records.labels >= num_labels))
    if wrong.size:
        index = int(wrong[0])
        raise ValueError(
            f"{records.where(index)}: label {records.labels[index]} is outside 0..{num_labels - 1} "
            f"({wrong.size} such record(s)); {remedy}"
        )


def resolve_labels(train: R, test: R | None, wanted: int | None) -> tuple[int, R | None]:
    """Settle the classes of both record sets.

    Args:
        train: training records.
        test: test records; None: there are none.
        wanted: task.num_labels; None: as many as the training records have.

    Returns:
        The number of classes, and the test records with labels numbered as in `train` (an image folder's test tree may lack a
        class).

    Raises:
        ValueError: labels do not fit.
    """
    found = len(train.label_names) or int(train.labels.max()) + 1
    num_labels = wanted or found
    if wanted and train.label_names and wanted < len(train.label_names):
        raise ValueError(f"task.num_labels is {wanted}, the data has {found} classes; raise it to {found} or leave it out")
    remedy = "correct the label or raise task.num_labels" if wanted else "number the classes from 0"
    check_labels(train, num_labels, remedy)
    if num_labels < 2:
        raise ValueError(
            f"{train.where(0)}: all {len(train)} labels are {train.labels[0]}; a classifier needs at least 2 classes"
        )
    if test is not None:
        if test.label_names != train.label_names:
            test = _renumber(test, train.label_names)
        check_labels(test, num_labels, f"the training data has classes 0..{num_labels - 1}")
    return num_labels, test


def _renumber(test: R, names: tuple[str, ...]) -> R:
    unknown = sorted(set(test.label_names) - set(names))
    if unknown:
        raise ValueError(f"{test.where(0)}: test class {unknown[0]!r} is not in the training data (classes: {', '.join(names)})")
    table = np.array([names.index(name) for name in test.label_names], dtype=np.int64)
    return replace(test, labels=table[test.labels], label_names=names)
