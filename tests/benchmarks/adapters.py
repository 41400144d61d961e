"""Adapters in the last third of the blocks: epochs whose frozen part comes from the cache against those that compute it."""

import tempfile
import time
from pathlib import Path

import torch

from frostline_trainer.profile import profile_units
from frostline_trainer.step.digests import world_digest
from tests.benchmarks.cached_prefix import epoch, filled_cache, unit_seconds
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import bert_context, bert_job
from tests.cache_stack import cache_stack

PAIRS = 5
FREEZE_POINT = 5
"""Units before the first adapter: the embedding and four of six blocks."""
GOAL = 2.0


def adapters(effort: Effort) -> Report:
    """Measure epochs with and without the cache, in turns; both take the same steps from the same weights."""
    torch.set_num_threads(1)
    job = bert_job(adapters={"rank": 8, "targets": ["query", "value"], "blocks": "last third"})
    cached, computed = (Stepper(bert_context(job), freeze_point=FREEZE_POINT) for _ in range(2))
    _, prefix, rest = unit_seconds(profile_units(bert_context(job), time.thread_time), FREEZE_POINT)
    steps = 2 if effort.quick else cached.generation.feed.steps_per_epoch
    with tempfile.TemporaryDirectory() as folder, cache_stack(Path(folder)) as stack:
        cache = filled_cache(cached, stack)
        ways = {"cached": lambda: epoch(cached, steps), "computed": lambda: epoch(computed, steps)}
        seconds, processor = interleave_both(ways, effort.pairs(PAIRS))
        counts = cache.take_counts()
    assert counts.misses == 0 and counts.hits > 0, f"the cached epochs read {counts.hits} values, {counts.misses} were missing"
    digest, other = world_digest(cached.generation), world_digest(computed.generation)
    assert digest == other, f"cached {digest}, computed {other}"
    sides = {"computed ms": milliseconds(seconds["computed"]), "cached ms": milliseconds(seconds["cached"])}
    sides["allowed x"] = (prefix + rest) / rest
    note = f"both end with the digest {digest[:12]} after {cached.step_number} steps"
    rows = [
        Row("bert, by the clock", "computed / cached", "x", Spread.of(ratios(seconds["computed"], seconds["cached"])), sides,
            at_least=GOAL, note=note),
        Row("bert, by processor time", "computed / cached", "x", Spread.of(ratios(processor["computed"], processor["cached"])),
            at_least=GOAL),
    ]  # fmt: skip
    return Report(
        "Adapters, cached and computed",
        "LoRA matrices (rank 8, query and value) in the last two of the six blocks of a BERT (hidden size 384, 64 tokens): four "
        "blocks and the embedding never learn. One worker, a real Redis and cache server, filled before: an epoch whose frozen "
        "part is read against one that computes it. Both take the same steps from the same weights, and their weights and "
        "moments are compared bit by bit at the end. *allowed* is the ratio of the same epochs' times by `profile_units`, the "
        "planner's own measurement, where a fetch costs nothing and a step is nothing but its units.",
        rows,
    )
