"""The interfaces of a split and of a job's loaded data."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from frostline_trainer.data.sizes import DataSizes

IGNORED = -100
"""A label that losses ignore (the `ignore_index` of torch's and transformers' cross entropy)."""


@dataclass(frozen=True)
class SampleNames:
    """The names of a split's samples in a cache, by which runs share values even if they split the data differently.

    Attributes:
        digest: hex SHA-256 of all that decides a named sample's inputs, independent of the other samples in the split.
        numbers: the name of sample i.
    """

    digest: str
    numbers: Sequence[int] | np.ndarray


class Split(Protocol):
    """Samples 0 .. len - 1 of one split (train, guard or test).

    Attributes:
        name: "train", "guard" or "test".
        digest: hex SHA-256 of all that decides the inputs of sample i, so that a cache key may name (digest, name, i).
        padding_comes_last (optional): True if no valid token of a row of text comes after padding.
        own_tokens (optional): how many valid tokens each sample of text has before its padding, the same in every variant.
        sample_names (optional): the samples' names, if a sample's inputs do not depend on the other samples in the split.
    """

    name: str
    digest: str

    def __len__(self) -> int: ...

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        """Model inputs and labels of the samples, in order, as CPU tensors whose shapes depend on len(indices) alone.

        Floating tensors are float32.

        Args:
            indices: sample numbers; -1 gives a padding item, with valid inputs and all labels ignored.
            variants: the augmentation variant of each sample.
        """
        ...

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Valid items of each loss term of the task among the samples, from the labels alone (no inputs are built)."""
        ...

    def references(self) -> Any:
        """The references with which the task's metrics compare predictions, of a type that depends on the task."""
        ...


def inputs_of(split: Split, indices: Sequence[int], variants: Sequence[int], samples: bool) -> dict[str, Tensor]:
    """A micro-batch's inputs.

    A split whose samples are costly to read may have `later_inputs(indices)`: like `collate`, without inputs that only the
    embedding reads.

    Args:
        split: the split.
        indices, variants: as in `Split.collate`.
        samples: whether inputs of the embedding are needed: not if the embedding runs on another member, or its output is known.
    """
    lean = None if samples else getattr(split, "later_inputs", None)
    return split.collate(indices, variants) if lean is None else lean(indices)


def names_of(split: Split) -> SampleNames:
    """The names of a split's samples in a cache: its `sample_names` if it has them, else their places in this split."""
    own: SampleNames | None = getattr(split, "sample_names", None)
    return own if own is not None else SampleNames(split.digest, range(len(split)))


def tile_samples(number: int, size: int, count: int) -> list[int]:
    """The samples of one tile of `size` samples out of `count` samples in order, padded with -1."""
    return [sample if sample < count else -1 for sample in range(number * size, (number + 1) * size)]


def first_samples(split: Split, count: int) -> list[int]:
    """The split's first samples, padded to `count`, for measurements and probes."""
    return tile_samples(0, count, len(split))


class Processor(Protocol):
    """The interface of a tokenizer or image processor, which is saved beside the model."""

    def save_pretrained(self, directory: str) -> Any:
        """Write its files into the model's folder, for `from_pretrained`."""


@dataclass(frozen=True)
class TaskData:
    """A job's data: the three splits, their sizes for the model, and the tokenizer or image processor.

    Attributes:
        digest: hex SHA-256 over the splits' digests and the sizes; equal on every worker of a run.
        augmentation_note: how samples vary between epochs, in words, for logs and the report.
    """

    train: Split
    guard: Split
    test: Split
    sizes: DataSizes
    processor: Processor | None
    digest: str
    augmentation_note: str


def digest_of(*parts: Any) -> str:
    """Hex SHA-256 of JSON-serialisable parts; bytes enter by their own SHA-256."""
    plain = [hashlib.sha256(part).hexdigest() if isinstance(part, (bytes, memoryview)) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
