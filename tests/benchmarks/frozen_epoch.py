"""An epoch with half the blocks frozen and cached, the same uncached, and unfrozen, beside what unit times allow."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.statistics import WorkerProfile
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.profile import profile_units
from frostline_trainer.step.context import RunContext
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import SUBJECTS, new_context
from tests.cache_stack import CacheStack, cache_stack

FREEZE_POINT = 4
"""The embedding and three of six blocks."""
PAIRS = {"digits": 5, "bert": 3}
GOAL_PERCENT = 95.0
CACHE_BYTES = 512 << 20


def frozen_epoch(effort: Effort) -> Report:
    """Epochs in turns."""
    torch.set_num_threads(1)
    rows = []
    for subject in SUBJECTS:
        with tempfile.TemporaryDirectory() as folder, cache_stack(Path(folder), shard_bytes=CACHE_BYTES) as stack:
            rows += _rows(subject, stack, effort)
    return Report(
        "An epoch with half the blocks frozen and cached",
        f"One worker, a real Redis and cache server, freeze point {FREEZE_POINT} of 8 units: an epoch whose frozen prefix comes "
        "from the cache (filled before, prefetched and audited as in a run) against the same epoch that computes it, and against "
        "one in which everything learns. *allowed* is the ratio of the same epochs' times by `profile_units`, the planner's own "
        "measurement, where a fetch costs nothing and a step is nothing but its units.",
        rows,
    )


def _rows(subject: str, stack: CacheStack, effort: Effort) -> list[Row]:
    # Two models: the frozen prefix must stay what the cache holds while the unfrozen epochs train on.
    learning, frozen = new_context(subject), new_context(subject)
    profile = profile_units(learning, time.thread_time)
    unfrozen, stepper = Stepper(learning), Stepper(frozen, freeze_point=FREEZE_POINT)
    cache = stack.connect(frozen.hidden_shape, frozen.dtype)
    steps = 2 if effort.quick else stepper.generation.feed.steps_per_epoch
    _fill(stepper, cache, stack)
    reader = stepper.generation.prefix
    prefetch = frozen.job.cache.prefetch_steps

    def epoch(member: Stepper) -> None:
        for _ in range(steps):
            member.step()
            member.generation.prefetch(range(member.step_number + prefetch, member.step_number + prefetch + 1))

    def with_reader(prefix: object) -> Callable[[], None]:
        def run() -> None:
            stepper.generation.prefix = prefix  # type: ignore[assignment]
            epoch(stepper)

        return run

    cache.take_counts()
    ways = {"cached": with_reader(reader), "computed": with_reader(None), "unfrozen": lambda: epoch(unfrozen)}
    seconds, processor = interleave_both(ways, effort.pairs(PAIRS[subject]))
    counts = cache.take_counts()
    assert counts.hits > 0, f"the cached epochs read {counts.hits} values of {counts.misses} missing ones"
    note = f"{100 * counts.hits / (counts.hits + counts.misses):.1f} % hits"
    whole, prefix, rest = _unit_seconds(profile)
    allowed = {"computed": (prefix + rest) / rest, "unfrozen": whole / rest}
    rows = []
    for other in ("computed", "unfrozen"):
        gained = ratios(seconds[other], seconds["cached"])
        sides = {f"{other} ms": milliseconds(seconds[other]), "cached ms": milliseconds(seconds["cached"])}
        rows += [
            Row(
                f"{subject}, {other}",
                f"{other} / cached",
                "x",
                Spread.of(gained),
                {**sides, "allowed x": allowed[other]},
                note=note,
            ),
            _share(subject, f"{other}, by the clock", gained, allowed[other]),
            _share(subject, f"{other}, by processor time", ratios(processor[other], processor["cached"]), allowed[other]),
        ]
    return rows


def _share(subject: str, other: str, gained: list[float], allowed: float) -> Row:
    """What a cached epoch reaches of the ceiling. Processor time is the training thread's, which other programs disturb less."""
    shares = [100 * ratio / allowed for ratio in gained]
    return Row(f"{subject}, {other}", "gained, of what is allowed", "%", Spread.of(shares), at_least=GOAL_PERCENT)


def _fill(stepper: Stepper, cache: BoundaryCache, stack: CacheStack) -> None:
    """Every sample's every variant into the cache, through the engine's own prefix reader."""
    context = stepper.generation.context
    kinds = _kinds(context)
    identity = CacheIdentity("bench", context.data.train.digest[:32], "train", FREEZE_POINT)
    stack.ready(cache, identity, values=len(context.data.train) * kinds)
    stepper.generation.use_cache(cache, None)
    reader, size = stepper.generation.prefix, context.job.training.batch_size
    assert reader is not None
    wanted = [(sample, kind) for kind in range(kinds) for sample in range(len(context.data.train))]
    for start in range(0, len(wanted), size):
        batch = wanted[start : start + size]
        reader.rows([sample for sample, _ in batch], [kind for _, kind in batch])
        cache.flush()


def _kinds(context: RunContext) -> int:
    section = context.job.data.augmentation
    return section.variants if section.mode == "k-variants" else 1


def _unit_seconds(profile: WorkerProfile) -> tuple[float, float, float]:
    """A micro-batch's seconds: all units learning; the frozen prefix forward only; the units that still learn."""
    both = [unit.forward_seconds + unit.backward_seconds for unit in profile.units]
    return sum(both), sum(unit.forward_seconds for unit in profile.units[:FREEZE_POINT]), sum(both[FREEZE_POINT:])
