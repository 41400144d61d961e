"""What a member is given for a step: its micro-batches. Where a device computes meanwhile, the next step's are read ahead."""

import threading
from collections.abc import Callable

from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.feed import BatchFeed, StepBatch
from frostline_trainer.step.pipeline import MicroBatch
from frostline_trainer.step.stage import Inputs


class StepFeed:
    """The micro-batches of one replica. numbers: theirs. embeds: whether this member computes the embedding."""

    def __init__(self, context: RunContext, feed: BatchFeed, numbers: list[int], embeds: bool) -> None:
        self._context, self._feed, self._numbers, self._embeds = context, feed, numbers, embeds
        self._ahead = Ahead(self._read, context.device.type != "cpu")

    def micro_batches(self, batch: StepBatch, prefix: PrefixReader | None) -> list[MicroBatch]:
        """A step's, in order; with the frozen prefix's output where `prefix` gives it."""
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

    def prefetch(self, step: int, prefix: PrefixReader) -> None:
        """Tell the cache which samples a coming step will read."""
        batch, rows = self._feed.batch(step), self._rows()
        prefix.prefetch(batch.indices[rows], batch.variants[rows])

    def _rows(self) -> slice:
        """The replica's rows of the whole batch."""
        return slice(self._feed.rows_of(self._numbers[0]).start, self._feed.rows_of(self._numbers[-1]).stop)

    def _read(self, step: int, samples: bool) -> list[Inputs]:
        """A step's inputs in host memory, as the device takes them."""
        batch = self._feed.batch(step)
        return [self._context.for_device(self._feed.inputs(batch, number, samples)) for number in self._numbers]


class Ahead:
    """Reads step s + 1 in a thread of its own while step s is computed.

    read(step, samples): pure; what it raises is raised where the step is taken. ahead: False reads each step when it is taken.
    """

    def __init__(self, read: Callable[[int, bool], list[Inputs]], ahead: bool) -> None:
        self._do_read, self._ahead = read, ahead
        self._coming: _Coming | None = None

    def take(self, step: int, samples: bool) -> list[Inputs]:
        """A step's inputs; the next step's are begun."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.join()  # a step that was read in vain is waited for too: splits are read by one thread at a time
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
