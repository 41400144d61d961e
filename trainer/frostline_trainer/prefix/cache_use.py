"""A worker's use of the activation cache: when it reads the frozen prefix through it, and by which identity of the values."""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig

from frostline_contract.cache_tag import unsigned_refusal
from frostline_contract.job import Job
from frostline_contract.plan import SAMPLE
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import CacheProfile
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.cache.codec import make_codec
from frostline_trainer.cache.revision import prefix_revision
from frostline_trainer.data.augment import augmentation_of, cache_refusal
from frostline_trainer.prefix.cache_access import CacheAccess
from frostline_trainer.prefix.own_tokens import own_tokens
from frostline_trainer.prefix.split_caches import SplitCaches
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.device_clock import quota_clock_of
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.side_copies import streams_of

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 1.0
"""How long entering a generation waits for the digest of its frozen prefix (some gigabytes of weights) and for the shard map of a
new cache, so that values of others are read from the first step on."""

NAMES = frozenset((
    "_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id", "num_labels",
    "problem_type",
))  # fmt: skip
"""Settings of a model that no frozen unit computes by: origin, type of stored weights, the head's labels. Frozen units have no
dropout either."""


@dataclass
class _Asked:
    """What a generation asks for: the revisions of its frozen prefix, by boundary, its own first, then the previous one.

    Attributes:
        revisions: functions that compute them.
        known: whether they have been computed.
    """

    revisions: dict[int, Callable[[], str]]
    known: bool = False


class CacheUse:
    """Connects the worker's generations to its caches, which are opened when they are first needed.

    Args:
        context: the run's model and data, on this worker.
        cache_address, token, worker_id, run_dir: as for `CacheAccess.of`.
    """

    def __init__(self, context: RunContext, cache_address: str, token: str, worker_id: str, run_dir: Path) -> None:
        self._context = context
        self._access = CacheAccess.of(cache_address, token, worker_id, run_dir)
        self._hit_fraction = 0.0
        self._lock = threading.Lock()
        self._asked: _Asked | None = None
        codec = make_codec(context.job.cache.codec, context.hidden_shape, context.dtype)
        self._own_tokens = own_tokens(context)
        if self._own_tokens is not None:
            share = self._own_tokens.mean() / context.hidden_shape[0]
            log.info("cached values hold their samples' own tokens: %.0f %% of the padded ones in the mean", 100 * share)
        self.round_trip = None if codec.name == "none" else codec.round_trip
        self._caches = SplitCaches(context, self._access, self._own_tokens)

    @property
    def cache(self) -> BoundaryCache | None:
        """The train split's cache, from when it is first needed."""
        return self._caches.train

    @property
    def refusal(self) -> str | None:
        """Why this job's values cannot be cached, and what to set."""
        return cache_refusal(self._context.job) or unsigned_refusal(self._context.job.cache, self._access.run_dir)

    def connect(self, generation: Generation, state: RunState) -> None:
        """Let `generation` read its frozen prefix through the cache, if its placement says so and stage 0 holds the prefix.

        The values' identity includes a digest of the prefix's weights. If computing it takes longer than PATIENCE_SECONDS, a
        thread goes on with it; until then every read misses, and the prefix is computed, with the same bits.
        """
        with self._lock:
            self._asked = None
        boundary = generation.freeze_point
        wanted = generation.placement.use_cache and self.refusal is None and self._context.job.elastic.cache
        holds_prefix = 0 in generation.stages and 0 < boundary <= generation.placement.stage_bounds[1]
        if not (wanted and holds_prefix and self._has_server()):
            self._caches.clear_boundary()
            return
        cache = self._caches.open_train()
        previous = self._previous_boundary(state, boundary)
        chain = list(state.codec_chain)
        tile = 1 if generation.plan.prefix_tile == SAMPLE else self._context.micro_batch_size
        points = [point for point in (boundary, previous) if point is not None]
        self._ask(cache, _Asked({point: self._revision_of(point, chain, tile) for point in points}))
        generation.use_cache(cache, previous, self._caches.for_scores)

    def _has_server(self) -> bool:
        """Whether there is a cache server. A worker may have registered before the run's own one had its address."""
        return bool(self._access.address) or RunDirectory(self._access.run_dir).cache_address.exists()

    def leave(self) -> None:
        """Stop using the cache, since this worker is in no generation: what it leased is released. May be called again."""
        with self._lock:
            if self._asked is not None:
                self._caches.clear_boundary()
            self._asked = None

    def _ask(self, cache: BoundaryCache, asked: "_Asked") -> None:
        with self._lock:
            self._asked = asked
        finder = threading.Thread(target=self._find, args=(asked,), name="prefix-digest", daemon=True)
        finder.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        finder.join(PATIENCE_SECONDS)
        cache.await_shards(max(0.0, deadline - time.monotonic()))
        with self._lock:
            if not asked.known:
                log.info("the frozen prefix's digest takes more than %g s; it is computed until then", PATIENCE_SECONDS)
                self._caches.suspend()

    def _find(self, asked: "_Asked") -> None:
        """Compute the revisions, in a thread and on a device stream of their own."""
        try:
            with streams_of(self._context.device).beside():
                found = [(point, revision()) for point, revision in asked.revisions.items()]
        except RuntimeError as error:  # the training thread will get the device's error too
            log.warning("the frozen prefix has no digest, and is not cached: %s", error)
            return
        with self._lock:
            asked.known = True
            if self._asked is asked:
                self._caches.set_boundary(found[0], found[1] if len(found) > 1 else None)

    def take_counts(self) -> tuple[int, int]:
        """(hits, misses) in samples since the last call."""
        if self.cache is None:
            return 0, 0
        counts = self.cache.take_counts()
        asked = counts.hits + counts.misses
        if asked:
            self._hit_fraction = 0.8 * self._hit_fraction + 0.2 * counts.hits / asked
        return counts.hits, counts.misses

    def profile(self) -> CacheProfile | None:
        """The measured cost of a hit, for the planner's decision to use the cache; None before the first one.

        Only the time that a step waits counts, not reads that a prefetch hides. A CPU worker with a quota reads ahead on the
        share that it computes with, so that nothing is hidden: there all processor time counts, and no wait.
        """
        measured = self.cache.profile() if self.cache is not None else None
        if measured is None or measured.exposed_seconds_per_sample is None:
            return None
        seconds, quota = measured.exposed_seconds_per_sample, quota_clock_of(self._context.job, self._context.device)
        if quota is not None:
            ahead = measured.hidden_processor_seconds_per_sample if self._context.job.cache.prefetch_steps else None
            seconds = quota.lasts((measured.own_processor_seconds_per_sample or 0.0) + (ahead or 0.0))
        return CacheProfile(
            fetch_seconds_per_sample=seconds,
            fill_seconds_per_sample=measured.fill_seconds_per_sample or 0.0,
            hit_fraction=self._hit_fraction,
        )

    def close(self) -> None:
        """Close the caches: their connections and threads end."""
        with self._lock:
            self._asked = None
        self._caches.close()

    def _revision_of(self, boundary: int, chain: list[int], tile: int) -> Callable[[], str]:
        """A function that computes the revision of a boundary's values: of model, numerics and current frozen weights.

        Args:
            boundary: the freeze point at which the prefix ends.
            chain: boundaries at which values pass through the codec.
            tile: samples that the prefix computes together.
        """
        context, codec = self._context, self._context.job.cache.codec
        points = [(point, codec) for point in chain if point <= boundary] if codec != "none" else []
        states = [unit.state_dict() for unit in context.cut.units[:boundary]]
        preprocessing = preprocessing_of(context.job, context.precision.name, context.cut.model.config)
        preprocessing += "" if self._own_tokens is None else "|own tokens"

        return lambda: prefix_revision(states, (tile, *context.hidden_shape), points, preprocessing, context.prefix_digest)

    def _previous_boundary(self, state: RunState, boundary: int) -> int | None:
        """The previous boundary, if its values can be advanced to this one; None otherwise."""
        points = [
            self._context.job.initial_freeze_point(self._context.num_units),
            *(decision.freeze_point for decision in state.decisions),
        ]
        earlier = [point for point in points if 0 < point < boundary]
        return earlier[-1] if earlier else None


def preprocessing_of(job: Job, precision: str, config: PreTrainedConfig) -> str:
    """All that a boundary activation depends on beside weights, tile and numerics, as text.

    It includes the seed only if samples are augmented before the cache; otherwise runs with different seeds share values.
    """
    drawn_by = f"seed {job.seed}|" if augmentation_of(job) is not None else ""
    return f"{job.data.augmentation.model_dump_json()}|{drawn_by}{precision}|{job.model.attention}|{function_of(config)}"


def function_of(config: PreTrainedConfig) -> str:
    """The settings by which units compute, as text. Weights do not show them, and one of them may act on some blocks only
    (`scale_attn_by_inverse_layer_idx`), so that the prefix probe, which stands for all blocks by the first, may not either."""
    fields = {name: value for name, value in config.to_dict().items() if name not in NAMES and "drop" not in name}
    return json.dumps(fields, sort_keys=True, default=str)
