"""Batches by step number: the samples of step s follow from (seed, s) alone, cut into numbered micro-batches of one size."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from frostline_trainer.data.split import inputs_of
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.pipeline import MicroBatch

BATCHES_KEPT = 8
"""More than steps that are prefetched ahead by default."""


@dataclass(frozen=True)
class StepBatch:
    """The samples of one step, in the order of its micro-batches.

    indices, variants: M * micro_batch_size long, -1 where padded. counts: valid items of the WHOLE batch, by loss term.
    """

    step: int
    indices: list[int]
    variants: list[int]
    counts: tuple[int, ...]


class BatchFeed:
    """Makes a replica's micro-batches."""

    def __init__(self, context: RunContext, dp_degree: int, origin: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._context = context
        self._order = context.order(dp_degree, origin)
        self._made = lru_cache(maxsize=BATCHES_KEPT)(self._make)
        self._length = context.num_microbatches(dp_degree) * context.micro_batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the training data, the last one perhaps smaller."""
        return self._order.steps_per_epoch

    def place_of(self, step: int) -> tuple[int, int]:
        """(epoch, offset) at which the batch of `step` begins."""
        return self._order.place_of(step)

    def batch(self, step: int) -> StepBatch:
        """Of a step; whoever has asked for it ahead, as the cache's prefetch does, has had it made."""
        return self._made(step)

    def _make(self, step: int) -> StepBatch:
        context = self._context
        indices = self._order.indices(step)
        indices = indices + [-1] * (self._length - len(indices))
        section = context.job.data.augmentation
        variants = self._order.variants(step, indices, section.mode, section.variants)
        counts = context.task.loss_counts(context.data.train, indices)
        return StepBatch(step, indices, variants, counts)

    def rows_of(self, number: int) -> slice:
        """The batch's rows that make up micro-batch `number`."""
        size = self._context.micro_batch_size
        return slice(number * size, (number + 1) * size)

    def inputs(self, batch: StepBatch, number: int, samples: bool) -> dict[str, torch.Tensor]:
        """Of micro-batch `number`, in host memory; with its samples only where the embedding computes them."""
        rows = self.rows_of(number)
        return inputs_of(self._context.data.train, batch.indices[rows], batch.variants[rows], samples)

    def micro_batch(self, batch: StepBatch, number: int, samples: bool) -> MicroBatch:
        """Micro-batch `number`, on the device."""
        inputs = self._context.on_device(self.inputs(batch, number, samples))
        return MicroBatch(number, inputs, batch.indices[self.rows_of(number)])
