"""Batches by step number: the samples of step s follow from (seed, s) alone, and are cut into numbered micro-batches of one size.

On a GPU the next step's inputs are read ahead while the device computes.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from frostline_trainer.data.split import inputs_of
from frostline_trainer.prefix.dealing import DealtPrefix
from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.pipeline import MicroBatch
from frostline_trainer.step.stage import Inputs

BATCHES_KEPT = 8
"""Batches that are kept: more than the steps that are prefetched by default."""


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
        """The batch of a step; kept for a few steps, since the cache's prefetch asks for it ahead."""
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
        """The inputs of micro-batch `number`, in host memory. samples: with raw samples, for a stage with the embedding."""
        rows = self.rows_of(number)
        return inputs_of(self._context.data.train, batch.indices[rows], batch.variants[rows], samples)

    def micro_batch(self, batch: StepBatch, number: int, samples: bool) -> MicroBatch:
        """Micro-batch `number`, on the device."""
        inputs = self._context.on_device(self.inputs(batch, number, samples))
        return MicroBatch(number, inputs, batch.indices[self.rows_of(number)])


class StepFeed:
    """The micro-batches of one replica. numbers: the micro-batches'. embeds: whether this member computes the embedding."""

    def __init__(self, context: RunContext, feed: BatchFeed, numbers: list[int], embeds: bool) -> None:
        self._context, self._feed, self._numbers, self._embeds = context, feed, numbers, embeds
        self._ahead = Ahead(self._read, context.device.type != "cpu")

    def micro_batches(self, batch: StepBatch, prefix: PrefixReader | DealtPrefix | None) -> list[MicroBatch]:
        """A step's micro-batches, in order; with the frozen prefix's output if there is a `prefix` reader."""
        host = self._ahead.take(batch.step, self._embeds and prefix is None)
        on_device = self._context.on_device
        found = [
            MicroBatch(number, on_device(inputs), batch.indices[self._feed.rows_of(number)])
            for number, inputs in zip(self._numbers, host, strict=True)
        ]
        if prefix is not None:
            rows, size = self._rows(), self._context.micro_batch_size
            samples, variants = batch.indices[rows], batch.variants[rows]
            boundary = prefix.rows(samples, variants)
            prefix.audit(samples, variants, boundary, batch.step)
            for place, micro_batch in enumerate(found):
                micro_batch.boundary = aligned(boundary[place * size : (place + 1) * size])
        return found

    def prefetch(self, step: int, prefix: PrefixReader | DealtPrefix) -> None:
        """Prefetch from the cache the samples that a coming step will read."""
        batch, rows = self._feed.batch(step), self._rows()
        prefix.prefetch(batch.indices[rows], batch.variants[rows])

    def _rows(self) -> slice:
        """The replica's rows of the whole batch."""
        return slice(self._feed.rows_of(self._numbers[0]).start, self._feed.rows_of(self._numbers[-1]).stop)

    def _read(self, step: int, samples: bool) -> list[Inputs]:
        """A step's inputs in host memory, ready to be copied to the device."""
        batch = self._feed.batch(step)
        return [self._context.for_device(self._feed.inputs(batch, number, samples)) for number in self._numbers]


class Ahead:
    """Reads the inputs of step s + 1 in a thread of its own while step s is computed.

    Args:
        read: (step, samples) -> inputs; a pure function. Its exceptions are raised by `take`.
        ahead: False reads each step only when it is taken.
    """

    def __init__(self, read: Callable[[int, bool], list[Inputs]], ahead: bool) -> None:
        self._do_read, self._ahead = read, ahead
        self._coming: _Coming | None = None

    def take(self, step: int, samples: bool) -> list[Inputs]:
        """A step's inputs; reading of the next step's begins."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.join()  # also for a step that is not wanted: one thread at a time reads a split
        matches = coming is not None and coming.wanted == (step, samples)
        found = coming.result() if coming is not None and matches else self._do_read(step, samples)
        if self._ahead:
            self._coming = _Coming(self._do_read, step + 1, samples)
            self._coming.start()
        return found


class _Coming(threading.Thread):
    """Inputs that are being read. wanted: (step, samples)."""

    def __init__(self, read: Callable[[int, bool], list[Inputs]], step: int, samples: bool) -> None:
        super().__init__(name="read-ahead", daemon=True)
        self.wanted = step, samples
        self._read = read
        self._found: list[Inputs] = []
        self._raised: Exception | None = None

    def run(self) -> None:
        try:
            self._found = self._read(*self.wanted)
        except Exception as error:
            self._raised = error

    def result(self) -> list[Inputs]:
        if self._raised is not None:
            raise self._raised
        return self._found
