"""A frozen prefix with all values cached, for benchmarks that time the units behind it; and epochs that read these values."""

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.statistics import WorkerProfile
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.prefix.own_tokens import own_tokens
from frostline_trainer.step.context import RunContext
from tests.benchmarks.stepper import Stepper
from tests.cache_stack import CacheStack


def filled_cache(stepper: Stepper, stack: CacheStack) -> BoundaryCache:
    """Fill a cache with all variants of all samples through the engine's own prefix reader, which the stepper keeps."""
    context, generation = stepper.generation.context, stepper.generation
    cache = stack.connect(context.hidden_shape, context.dtype, own_tokens=own_tokens(context))
    kinds = _kinds(context)
    identity = CacheIdentity(f"bench-{generation.freeze_point}", context.data.train.digest[:32], "train", generation.freeze_point)
    stack.ready(cache, identity, values=len(context.data.train) * kinds)
    generation.use_cache(cache, None)
    assert generation.prefix is not None
    size = context.job.training.batch_size
    wanted = [(sample, kind) for kind in range(kinds) for sample in range(len(context.data.train))]
    for start in range(0, len(wanted), size):
        batch = wanted[start : start + size]
        generation.prefix.rows([sample for sample, _ in batch], [kind for _, kind in batch])
        cache.flush()
    cache.take_counts()
    return cache


def epoch(member: Stepper, steps: int) -> None:
    """Take steps as a run does: each is followed by the prefetch of a later one."""
    ahead = member.generation.context.job.cache.prefetch_steps
    for _ in range(steps):
        member.step()
        member.generation.prefetch(range(member.step_number + ahead, member.step_number + ahead + 1))


def unit_seconds(profile: WorkerProfile, freeze_point: int) -> tuple[float, float, float]:
    """Return seconds of a micro-batch: with all units learning, of the frozen prefix's forward, and of the units that learn."""
    both = [unit.forward_seconds + unit.backward_seconds for unit in profile.units]
    return sum(both), sum(unit.forward_seconds for unit in profile.units[:freeze_point]), sum(both[freeze_point:])


def _kinds(context: RunContext) -> int:
    section = context.job.data.augmentation
    return section.variants if section.mode == "k-variants" else 1
