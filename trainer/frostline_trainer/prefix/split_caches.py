"""The caches of one worker, one for each split whose frozen prefix it reads: of the train split, and of splits that are scored.

A split's values have an identity of their own, and their use is counted apart: a score reads between steps, so that it says
nothing about what a step waits for. A scored split's cache is opened when it is scored first, so that what steps read has been
admitted at that boundary; at later ones both ask at once.
"""

import threading

import numpy as np

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.seeds import seed_of
from frostline_contract.usage import Way
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.data.split import Split, names_of
from frostline_trainer.prefix.cache_access import CacheAccess
from frostline_trainer.step.context import RunContext

ADMISSION_SECONDS = 1.0
"""How long a split's first score waits for the cache server's admission, without which nothing that it computes is kept."""

Boundary = tuple[int, str]
"""Where a frozen prefix ends, and its revision."""


class SplitCaches:
    """Opens a BoundaryCache for each split that needs one, and tells all of them where the frozen prefix ends.

    Threads: the training thread opens and closes, another one may set the boundary.

    Args:
        context: the run's model and data, on this worker.
        access: how the cache server is reached, and by whom.
        own_tokens: as for the train split's BoundaryCache. Values of scored samples hold all tokens, since a task's metrics may
            read what its loss does not.
    """

    def __init__(self, context: RunContext, access: CacheAccess, own_tokens: np.ndarray | None) -> None:
        self._context, self._access, self._own_tokens = context, access, own_tokens
        self._names = {split.name: names_of(split) for split in (context.data.train, context.data.guard, context.data.test)}
        self._lock = threading.Lock()
        self._opened: dict[str, BoundaryCache] = {}
        self._at: tuple[Boundary, Boundary | None] | None = None

    @property
    def train(self) -> BoundaryCache | None:
        """The train split's cache; None before it is opened."""
        return self._opened.get(self._context.data.train.name)

    def open_train(self) -> BoundaryCache:
        """Open the train split's cache, if it is not open, and give it the job's newest settings."""
        with self._lock:
            return self._open(self._context.data.train)

    def for_scores(self, split: Split) -> BoundaryCache | None:
        """The cache of a split that is scored; None if its scores compute the prefix.

        The guard split is scored again and again; the test split once, so that it has a cache only if other runs read it too.
        With a lossy codec neither has one: the final score is measured without the codec.
        """
        data = self._context.data
        pays = split is data.guard or (split is data.test and self._access.is_shared)
        if not pays or self._context.job.cache.codec != "none":
            return None
        with self._lock:
            is_new = split.name not in self._opened
            cache = self._open(split)
            if is_new and self._at is not None:
                self._set(split, *self._at)
        if is_new:
            cache.await_admission(ADMISSION_SECONDS)
        return cache

    def set_boundary(self, boundary: Boundary, previous: Boundary | None) -> None:
        """Use the caches at a boundary from now on. previous: the boundary whose values are advanced; None: there is none."""
        with self._lock:
            self._at = boundary, previous
            for split in (self._context.data.train, self._context.data.guard, self._context.data.test):
                if split.name in self._opened:
                    self._set(split, boundary, previous)

    def clear_boundary(self) -> None:
        """Stop using the caches."""
        with self._lock:
            self._at = None
            for cache in self._opened.values():
                cache.clear_boundary()

    def suspend(self) -> None:
        """Let reads miss and drop fills until the next `set_boundary`."""
        with self._lock:
            self._at = None
            for cache in self._opened.values():
                cache.suspend()

    def close(self) -> None:
        """Close the caches, side by side, since each waits for its last report to the cache server."""
        closing = [threading.Thread(target=cache.close, name="cache-close") for cache in self._opened.values()]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _set(self, split: Split, boundary: Boundary, previous: Boundary | None) -> None:
        def identity_at(end: Boundary) -> CacheIdentity:
            return CacheIdentity(end[1], self._names[split.name].digest, split.name, end[0])

        before = identity_at(previous) if previous is not None else None
        self._opened[split.name].set_boundary(identity_at(boundary), before, len(split) * self._variants_of(split))

    def _variants_of(self, split: Split) -> int:
        """Variants of each sample; scored samples are not augmented."""
        section = self._context.job.data.augmentation
        return section.variants if split is self._context.data.train and section.mode == "k-variants" else 1

    def _open(self, split: Split) -> BoundaryCache:
        context, section, trains = self._context, self._context.job.cache, split is self._context.data.train
        if split.name not in self._opened:
            cache = self._opened[split.name] = BoundaryCache(
                self._access.address,
                self._access.token,
                self._access.worker_id,
                section,
                context.hidden_shape,
                context.dtype,
                self._access.run_dir,
                pin_memory=context.device.type != "cpu",
                device_clock=lambda: context.device_clock,
                keep_previous=self._access.is_shared,
                names=self._names[split.name].numbers,
                own_tokens=self._own_tokens if trains else None,
                # All replicas audit the same step's micro-batches, but each run of a sweep other tiles of a score.
                audit_seed=0 if trains else seed_of("audit", str(self._access.run_dir)),
            )
            cache.before_fill = context.plug.rows_to_store
            context.traffic.follow(Way.CACHE, self._bytes_moved)
        cache = self._opened[split.name]
        cache.audit_fraction, cache.prefetch_steps = section.shadow_audit_fraction, section.prefetch_steps  # live fields
        return cache

    def _bytes_moved(self) -> tuple[int, int]:
        """(written, read) over all caches."""
        moved = [cache.bytes_moved() for cache in list(self._opened.values())]
        return sum(written for written, _ in moved), sum(read for _, read in moved)
