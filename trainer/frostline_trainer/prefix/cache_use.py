"""When and under which identity a worker uses the activation cache."""

import logging
from pathlib import Path

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.cache_sharing import unsigned_refusal
from frostline_contract.job import Job
from frostline_contract.plan import SAMPLE
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import CacheProfile
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.cache.codec import make_codec
from frostline_trainer.cache.revision import prefix_revision
from frostline_trainer.data.augment import augmentation_of, cache_refusal
from frostline_trainer.data.split import names_of
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState

log = logging.getLogger(__name__)


class CacheUse:
    """Connects the worker's generations to its BoundaryCache; the cache is made when it is first needed.

    A run that shares a cache with others has been given the token that opens it; the worker's own opens the run's own cache.
    """

    def __init__(self, context: RunContext, cache_address: str, token: str, worker_id: str, run_dir: Path) -> None:
        self._context, self._worker_id, self._run_dir = context, worker_id, run_dir
        self._address, shared_token = cache_address, RunDirectory(run_dir).cache_token
        self._shared = shared_token.exists()
        self._token = str(shared_token) if self._shared else token
        self.cache: BoundaryCache | None = None
        self._hit_fraction = 0.0
        codec = make_codec(context.job.cache.codec, context.hidden_shape, context.dtype)
        self.round_trip = None if codec.name == "none" else codec.round_trip

    @property
    def refusal(self) -> str | None:
        """Why this job's values cannot be cached, and what to set."""
        return cache_refusal(self._context.job) or unsigned_refusal(self._context.job.cache, self._run_dir)

    def connect(self, generation: Generation, state: RunState) -> None:
        """Let `generation` read its frozen prefix through the cache, where its placement says so and stage 0 holds the prefix."""
        boundary = generation.freeze_point
        wanted = generation.placement.use_cache and self.refusal is None and self._context.job.elastic.cache
        holds_prefix = 0 in generation.stages and 0 < boundary <= generation.placement.stage_bounds[1]
        if not (wanted and holds_prefix and self._address):
            if self.cache is not None:
                self.cache.clear_boundary()
            return
        if self.cache is None:
            self.cache = BoundaryCache(
                self._address,
                self._token,
                self._worker_id,
                self._context.job.cache,
                self._context.hidden_shape,
                self._context.dtype,
                self._run_dir,
                pin_memory=self._context.device.type != "cpu",
                keep_previous=self._shared,
                names=names_of(self._context.data.train).numbers,
            )
            self.cache.before_fill = self._context.plug.rows_to_store
        previous = self._previous_boundary(state, boundary)
        chain = list(state.codec_chain)
        tile = 1 if generation.plan.prefix_tile == SAMPLE else self._context.micro_batch_size
        old = self._identity(previous, chain, tile) if previous is not None else None
        variants = self._context.job.data.augmentation
        kinds = variants.variants if variants.mode == "k-variants" else 1
        self.cache.set_boundary(self._identity(boundary, chain, tile), old, len(self._context.data.train) * kinds)
        generation.use_cache(self.cache, previous)

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
        """Measured traffic, for the planner's use decision; None before anything was fetched.

        What a step waits for counts, not what a prefetch hides.
        """
        measured = self.cache.profile() if self.cache is not None else None
        if measured is None or measured.exposed_seconds_per_sample is None:
            return None
        return CacheProfile(
            fetch_seconds_per_sample=measured.exposed_seconds_per_sample,
            fill_seconds_per_sample=measured.fill_seconds_per_sample or 0.0,
            hit_fraction=self._hit_fraction,
        )

    def close(self) -> None:
        if self.cache is not None:
            self.cache.close()

    def _identity(self, boundary: int, chain: list[int], tile: int) -> CacheIdentity:
        """What names the cached values of a boundary: model, data, numerics and the frozen weights.

        tile: samples that the prefix computes together.
        """
        context, codec = self._context, self._context.job.cache.codec
        points = [(point, codec) for point in chain if point <= boundary] if codec != "none" else []
        revision = prefix_revision(
            [unit.state_dict() for unit in context.cut.units[:boundary]],
            (tile, *context.hidden_shape),
            points,
            preprocessing_of(context.job, context.precision.name),
            context.probe_digest,
        )
        return CacheIdentity(revision, names_of(context.data.train).digest, "train", boundary)

    @staticmethod
    def _previous_boundary(state: RunState, boundary: int) -> int | None:
        """The boundary before this one, whose values can be advanced."""
        earlier = [decision.freeze_point for decision in state.decisions if 0 < decision.freeze_point < boundary]
        return earlier[-1] if earlier else None


def preprocessing_of(job: Job, precision: str) -> str:
    """What a boundary activation depends on beside weights, tile and numerics, as text.

    The same sample and variant look different under another seed, where samples vary at all; elsewhere seeds share their values.
    """
    drawn_by = f"seed {job.seed}|" if augmentation_of(job) is not None else ""
    return f"{job.data.augmentation.model_dump_json()}|{drawn_by}{precision}|{job.model.attention}"
