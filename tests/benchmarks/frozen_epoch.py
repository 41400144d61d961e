"""An epoch with half the blocks frozen and cached, frozen and uncached, and unfrozen, beside the gain that unit times allow."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from frostline_trainer.profile import profile_units
from tests.benchmarks.cached_prefix import epoch, filled_cache, unit_seconds
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import SUBJECTS, new_context
from tests.cache_stack import CacheStack, cache_stack

FREEZE_POINT = 4
"""Frozen units: the embedding and three of six blocks."""
PAIRS = {"digits": 5, "bert": 3}
GOAL_PERCENT = 95.0
CACHE_BYTES = 512 << 20


def frozen_epoch(effort: Effort) -> Report:
    """Measure the three kinds of epoch in turns."""
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
    # Two models: the frozen prefix must not change, since the cache holds its outputs, while the unfrozen epochs train on.
    learning, frozen = new_context(subject), new_context(subject)
    profile = profile_units(learning, time.thread_time)
    unfrozen, stepper = Stepper(learning), Stepper(frozen, freeze_point=FREEZE_POINT)
    steps = 2 if effort.quick else stepper.generation.feed.steps_per_epoch
    cache = filled_cache(stepper, stack)
    reader = stepper.generation.prefix

    def with_reader(prefix: object) -> Callable[[], None]:
        def run() -> None:
            stepper.generation.prefix = prefix  # type: ignore[assignment]
            epoch(stepper, steps)

        return run

    ways = {"cached": with_reader(reader), "computed": with_reader(None), "unfrozen": lambda: epoch(unfrozen, steps)}
    seconds, processor = interleave_both(ways, effort.pairs(PAIRS[subject]))
    counts = cache.take_counts()
    assert counts.hits > 0, f"the cached epochs read {counts.hits} values of {counts.misses} missing ones"
    note = f"{100 * counts.hits / (counts.hits + counts.misses):.1f} % hits"
    if cache.own_tokens is not None:
        share = cache.own_tokens.mean() / frozen.hidden_shape[0]
        note += f"; values hold their texts' own tokens, {100 * share:.0f} % of the padded ones"
    whole, prefix, rest = unit_seconds(profile, FREEZE_POINT)
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
    """Return the share of the ceiling that a cached epoch reaches. Processor time is the training thread's, which other programs
    disturb less."""
    shares = [100 * ratio / allowed for ratio in gained]
    return Row(f"{subject}, {other}", "gained, of what is allowed", "%", Spread.of(shares), at_least=GOAL_PERCENT)
