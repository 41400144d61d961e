"""What a split of the data is to the engine, and what loading a job's data yields."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from frostline_trainer.data.sizes import DataSizes

IGNORED = -100
"""A label that counts in no loss (the `ignore_index` of torch's and transformers' cross entropy)."""


@dataclass(frozen=True)
class SampleNames:
    """What the samples of a split are called in a cache: runs that deal the same data out otherwise, by another seed, share it.

    Attributes:
        digest: hex SHA-256 of all that decides what a named sample looks like to the model, whichever others are in the split.
        numbers: the name of sample i.
    """

    digest: str
    numbers: Sequence[int] | np.ndarray


class Split(Protocol):
    """Samples 0 .. len - 1 of one split (train, guard or test).

    name: "train", "guard" or "test". digest: hex SHA-256 of all that decides what sample i looks like, so that a cache
    key may name (digest, name, i). A split of text may say `padding_comes_last = True`: no valid token of a row comes after
    padding; and `own_tokens`, how many valid tokens each sample has before its padding, the same in every variant. One whose
    samples look the same whichever others are in the split says their `sample_names`.
    """

    name: str
    digest: str

    def __len__(self) -> int: ...

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        """Model inputs and labels of the samples, in order, as CPU tensors whose shapes depend on len(indices) alone.

        indices: sample numbers; -1 gives a padding item, valid to compute with, its labels all ignored.
        variants: one augmentation variant a sample. Floating tensors are float32.
        """
        ...

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Valid items of each loss term of the task among the samples, from the labels alone (no inputs are built)."""
        ...

    def references(self) -> Any:
        """What the task's metrics compare predictions with; its type is the task's affair."""
        ...


def inputs_of(split: Split, indices: Sequence[int], variants: Sequence[int], samples: bool) -> dict[str, Tensor]:
    """A micro-batch's inputs; `samples` False where the embedding does not run here, or its output is known already.

    A split whose samples are costly to read may have `later_inputs(indices)`: as `collate`, less what only the embedding reads.
    """
    lean = None if samples else getattr(split, "later_inputs", None)
    return split.collate(indices, variants) if lean is None else lean(indices)


def names_of(split: Split) -> SampleNames:
    """What a cache calls the samples of a split: names of their own where it has them, else their places in this very split."""
    own: SampleNames | None = getattr(split, "sample_names", None)
    return own if own is not None else SampleNames(split.digest, range(len(split)))


def first_samples(split: Split, count: int) -> list[int]:
    """The split's first samples, padded to `count`: for what is measured or probed."""
    real = min(count, len(split))
    return [*range(real), *[-1] * (count - real)]


class Processor(Protocol):
    """A tokenizer or image processor, as far as a run needs it: it is saved beside the model."""

    def save_pretrained(self, directory: str) -> Any:
        """Write its files into the model's folder, from where `from_pretrained` reads them."""


@dataclass(frozen=True)
class TaskData:
    """A job's data: the three splits, what they say about the model, and the tokenizer or image processor.

    digest: hex SHA-256 over the splits' digests and the sizes; equal on every worker of a run. augmentation_note: how
    samples vary between epochs, in words, for logs and the report.
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
