"""The samples of each step: a pure function of the seed and the step, which any worker can compute for any step."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from frostline_contract.seeds import seed_of

PADDING = -1
"""The index of a padding item, which fills a batch up to its size; it has no weight in a loss or metric, and is not cached."""

EPOCHS_KEPT = 2
"""Permutations kept in memory: the current epoch's, and the next one's for prefetching."""


def permutation(seed: int, num_items: int) -> np.ndarray:
    """A permutation of range(num_items), int64.

    It sorts PCG64's raw 64-bit words. numpy guarantees this bit stream for ever, but the result of `shuffle` only within a
    release; a run that is resumed with another numpy must get the same batches.
    """
    words = np.random.PCG64(seed).random_raw(num_items)
    return np.argsort(words, kind="stable")


@dataclass(frozen=True)
class BatchOrder:
    """Global batches by step number. Steps count from 1, epochs from 0.

    Every epoch visits every sample once; its last batch is filled up with PADDING.

    Attributes:
        origin: (step, epoch, offset): the batch after `step` begins at that place of that epoch. It differs from the run's start
            only if the batch size changes during the run (training.batch: per_replica).

    Raises:
        ValueError: a size is below 1.
    """

    seed: int
    num_samples: int
    batch_size: int
    origin: tuple[int, int, int] = (0, 0, 0)
    _permutations: OrderedDict[int, np.ndarray] = field(default_factory=OrderedDict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; an epoch needs at least 1")

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one pass over the samples, the last one filled up."""
        return -(-self.num_samples // self.batch_size)

    def place_of(self, step: int) -> tuple[int, int]:
        """(epoch, offset in its permutation) at which the batch of `step` begins. Epochs count from 0, steps from 1."""
        origin_step, epoch, offset = self.origin
        assert step > origin_step, f"step {step}: this order starts after step {origin_step}, steps count from 1"
        batches = step - origin_step - 1
        in_first_epoch = -(-(self.num_samples - offset) // self.batch_size)
        if batches < in_first_epoch:
            return epoch, offset + batches * self.batch_size
        epochs, batches = divmod(batches - in_first_epoch, self.steps_per_epoch)
        return epoch + 1 + epochs, batches * self.batch_size

    def indices(self, step: int) -> list[int]:
        """The `batch_size` sample indices of a step, PADDING at the end of an epoch's last batch."""
        epoch, first = self.place_of(step)
        taken = self._epoch(epoch)[first : first + self.batch_size].tolist()
        return taken + [PADDING] * (self.batch_size - len(taken))

    def variants(self, step: int, indices: Sequence[int], mode: str, k: int) -> list[int]:
        """The augmentation variant of each sample in a step (docs/protocols.md 1.4).

        The choice depends on (seed, step, sample); a variant's pixels depend on (seed, sample, variant), see `augment`. Padding
        has variant 0.

        Args:
            step: the step.
            indices: the step's samples; below 0: padding.
            mode: data.augmentation.mode.
            k: data.augmentation.variants.
        """
        if mode == "k-variants":
            return [0 if index < 0 else seed_of("variant", self.seed, step, index) % k for index in indices]
        if mode == "recompute":
            return [0 if index < 0 else step for index in indices]
        assert mode in ("off", "deterministic", "pointwise-feature"), f"unknown augmentation mode {mode!r}"
        return [0] * len(indices)

    def _epoch(self, epoch: int) -> np.ndarray:
        if epoch not in self._permutations:
            self._permutations[epoch] = permutation(seed_of("order", self.seed, epoch), self.num_samples)
            while len(self._permutations) > EPOCHS_KEPT:
                self._permutations.popitem(last=False)
        return self._permutations[epoch]
