"""The caches of one worker, one for each split whose frozen prefix it reads: of the train split, and of splits that are scored.

A split's values have an identity of their own, and their use is counted apart: a score reads between steps, so that it says
nothing about what a step waits for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.usage import Way
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.data.split import Split, names_of
from frostline_trainer.step.context import RunContext

FLUSH_SECONDS = 1.0
"""How long the end of a run waits for values of held-out samples that are not yet written: the next run of a sweep reads them."""


class SplitCaches:
    """Opens a BoundaryCache for each split, and tells all of them where the frozen prefix ends.

    Args:
        context: the run's model and data, on this worker.
        address: host:port of the cache server; empty: it is in the run directory.
        token: for the cache server, or the path of a file that holds it.
        worker_id: this worker.
        run_dir: the run directory.
        shared: whether other runs use the same cache server.
        own_tokens: as for the train split's BoundaryCache. Values of held-out samples hold all tokens, since a task's metrics may
            read what its loss does not.
    """

    def __init__(self, context: RunContext, address: str, token: str, worker_id: str, run_dir: Path, shared: bool,
                 own_tokens: np.ndarray | None) -> None:  # fmt: skip
        self._context, self._shared, self._own_tokens = context, shared, own_tokens
        self._connection = address, token, worker_id
        self._run_dir = run_dir
        self._opened: dict[str, BoundaryCache] = {}

    @property
    def train(self) -> BoundaryCache | None:
        """The train split's cache; None before it is needed."""
        return self._opened.get(self._context.data.train.name)

    @property
    def held_out(self) -> dict[str, BoundaryCache]:
        """The caches of the splits that are scored, by the split's name."""
        return {split.name: self._opened[split.name] for split in self._scored() if split.name in self._opened}

    def open(self) -> None:
        """Open the caches that the job needs now, and give all of them its newest settings."""
        section = self._context.job.cache  # live: a new revision of the job brings other values
        for split in (self._context.data.train, *self._scored()):
            if split.name not in self._opened:
                self._opened[split.name] = self._open(split)
            cache = self._opened[split.name]
            cache.audit_fraction, cache.prefetch_steps = section.shadow_audit_fraction, section.prefetch_steps

    def set_boundary(self, boundary: tuple[int, str], previous: tuple[int, str] | None) -> None:
        """Use the caches at a boundary from now on. boundary, previous: (number, revision of the frozen prefix)."""
        for split in self._splits():
            name = names_of(split).digest, split.name
            now, before = (CacheIdentity(end[1], *name, end[0]) if end else None for end in (boundary, previous))
            assert now is not None
            self._opened[split.name].set_boundary(now, before, len(split) * self._variants_of(split))

    def clear_boundary(self) -> None:
        """Stop using the caches."""
        for cache in self._opened.values():
            cache.clear_boundary()

    def suspend(self) -> None:
        """Let reads miss and drop fills until the next `set_boundary`."""
        for cache in self._opened.values():
            cache.suspend()

    def close(self) -> None:
        """Close the caches; what is queued for other runs is written first, for FLUSH_SECONDS at most."""
        for name, cache in self._opened.items():
            if self._shared and name != self._context.data.train.name:
                cache.flush(FLUSH_SECONDS)
            cache.close()

    def _scored(self) -> Sequence[Split]:
        """The splits whose scores are worth a cache: the guard split, scored again and again, and the test split, scored once, if
        other runs score it too. None with a lossy codec: the final score is measured without it."""
        job, data = self._context.job, self._context.data
        if job.cache.codec != "none":
            return []
        guard = [data.guard] if job.evaluation.every_intervals else []
        test = [data.test] if job.evaluation.test_at_end and self._shared else []
        return [split for split in (*guard, *test) if len(split)]

    def _splits(self) -> Iterator[Split]:
        data = self._context.data
        return (split for split in (data.train, data.guard, data.test) if split.name in self._opened)

    def _variants_of(self, split: Split) -> int:
        """Variants of each sample; scored samples are not augmented."""
        section, trains = self._context.job.data.augmentation, split is self._context.data.train
        return section.variants if trains and section.mode == "k-variants" else 1

    def _open(self, split: Split) -> BoundaryCache:
        context, trains = self._context, split is self._context.data.train
        cache = BoundaryCache(
            *self._connection,
            context.job.cache,
            context.hidden_shape,
            context.dtype,
            self._run_dir,
            pin_memory=context.device.type != "cpu",
            device_clock=lambda: context.device_clock,
            keep_previous=self._shared,
            names=names_of(split).numbers,
            own_tokens=self._own_tokens if trains else None,
        )
        cache.before_fill = context.plug.rows_to_store
        context.traffic.follow(Way.CACHE, self._bytes_moved)
        return cache

    def _bytes_moved(self) -> tuple[int, int]:
        """(written, read) over all caches."""
        moved = [cache.bytes_moved() for cache in list(self._opened.values())]
        return sum(written for written, _ in moved), sum(read for _, read in moved)
