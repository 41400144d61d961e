"""The cache changes no bit: hits, misses, advanced values and a dead Redis give the same losses, for every codec."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from frostline_contract.plan import MICRO_BATCH, SAMPLE, Decision, PrefixTile
from frostline_rpc.auth import WORKER
from frostline_trainer.cache.counts import CacheCounts
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.prefix.own_tokens import own_tokens
from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.prefix.tile_check import find_place_dependence
from frostline_trainer.step.digests import world_digest
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from tests.cache_stack import CacheStack, admitted_fraction, cache_stack, identity, wait_patiently, wait_until
from tests.engine_member import Run, train_step
from tests.exact_cases import TRAIN_ROWS, Case, build_case
from tests.hand_made_plans import Layout, lone_plan
from tests.uneven_kernel import planted

CASE = Case("gpt2_tied", freezing=((2, 2), (7, 4)), steps=11)
"""Epochs of three steps: boundary 2 fills from the first, is read in the second, advances to 4 in the third, is read again."""

CODECS = ("none", "bfloat16", "int8")


@dataclass
class CachedRun:
    """A run's losses by step, and the cache's counts by freeze point."""

    run: Run = field(default_factory=Run)
    counts: dict[int, CacheCounts] = field(default_factory=dict)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheStack]:
    wait_patiently(monkeypatch)  # a stalled machine is no silent Redis
    with cache_stack(tmp_path) as started:
        yield started


def train(case: Case, stack: CacheStack | None, before_step: Callable[[int], None] = lambda step: None,
          tile: PrefixTile = MICRO_BATCH) -> CachedRun:  # fmt: skip
    """Train on one worker; without a stack nothing is cached and the prefix is computed with its micro-batch."""
    context, state, reported = build_case(case), RunState(), CachedRun()
    address, token = (stack.address, stack.tokens.by_role[WORKER]) if stack else ("", "")
    caching = CacheUse(context, address, token, f"worker-{id(context)}", stack.run_dir if stack else Path())
    placement = Layout(1, 1).placement(0).model_copy(update={"use_cache": True})
    plan = lone_plan(placement).model_copy(update={"prefix_tile": tile})
    generation = Generation(context, plan, 0, lone_groups(), 0, lambda name: None)
    try:
        for step in range(1, case.steps + 1):
            before_step(step)
            point = case.freeze_point_at(step)
            if point != state.freeze_point:
                freeze(generation, caching, state, step, point)
            train_step(generation, case, step, reported.run)
            if caching.cache is not None:
                assert caching.cache.flush(20.0)
                counted, reported.counts[point] = reported.counts.get(point), caching.cache.take_counts()
                if counted is not None:
                    reported.counts[point] = add(counted, reported.counts[point])
                generation.prefetch(range(step + 1, step + 2))
        reported.run.digest = world_digest(generation)
    finally:
        caching.close()
    return reported


@cache
def uncached(case: Case) -> CachedRun:
    """Return the run without a cache, which every cached run must equal."""
    return train(case, None)


def freeze(generation: Generation, caching: CacheUse, state: RunState, step: int, point: int) -> None:
    """Put a freeze into force as a worker does, then wait for admission."""
    number = len(state.decisions) + 1
    state.decisions.append(Decision(number=number, interval=number, effective_step=step, freeze_point=point, kind="freeze"))
    state.freeze_point = point
    state.codec_chain.append(point)
    generation.freeze_to(point, tuple(state.codec_chain), caching.round_trip)
    first = caching.cache is None
    caching.connect(generation, state)
    boundary = caching.cache
    if boundary is not None and first:
        wait_until(lambda: boundary.usable)  # the cache has not received its shard map yet
    if boundary is not None and boundary.usable:
        wait_until(lambda: admitted_fraction(boundary) == 1.0)


def add(first: CacheCounts, second: CacheCounts) -> CacheCounts:
    return replace(first, **{name: getattr(first, name) + getattr(second, name)
                             for name in ("hits", "misses", "previous_hits", "audited", "audit_failures")})  # fmt: skip


@pytest.mark.parametrize(("codec", "dtype"), [*((codec, "float32") for codec in CODECS), ("none", "mixed_bfloat16")])
def test_cached_missed_advanced_and_uncached_runs_have_equal_losses(codec: str, dtype: str, stack: CacheStack) -> None:
    case = replace(CASE, codec=codec, dtype=dtype)
    plain = uncached(case)
    cold = train(case, stack)
    warm = train(replace(case, audit_fraction=1.0), stack)
    assert cold.run.losses == warm.run.losses == plain.run.losses
    assert cold.run.unit_norms == warm.run.unit_norms == plain.run.unit_norms
    assert cold.counts[2].misses > 0 and cold.counts[2].hits > 0
    assert cold.counts[4].previous_hits > 0 and cold.counts[4].hits > 0
    assert warm.counts[4].hits > cold.counts[4].hits
    assert warm.counts[4].audited > 0 and warm.counts[4].audit_failures == 0
    assert cold.run.digest == warm.run.digest == plain.run.digest


PADDED = {
    "bert_classification": {"optimizer": "sgd"},
    "bert_regression": {"adapters": "all", "optimizer": "sgd", "freezing": ((2, 1), (7, 1))},
    "gpt2_untied": {"dtype": "bfloat16"},
    "llama": {"dtype": "float64", "cells": 3},
}
"""Texts whose padding is not stored. Momentum keeps a gradient's bits as they are, the sign of a 0 among them."""


@pytest.mark.parametrize(("family", "numerics"), PADDED.items(), ids=str)
def test_padding_that_is_not_stored_changes_no_bit(family: str, numerics: dict[str, Any], stack: CacheStack) -> None:
    case = replace(CASE, family=family, audit_fraction=1.0, **numerics)
    context, plain, cached = build_case(case), uncached(case), train(case, stack)
    own = own_tokens(context)
    assert own is not None and own.min() < own.max() == context.hidden_shape[0]
    assert sum(counts.hits for counts in cached.counts.values()) > 0
    assert cached.run.digest == plain.run.digest
    assert (cached.run.losses, cached.run.unit_norms) == (plain.run.losses, plain.run.unit_norms)


def test_padding_that_counts_is_stored(stack: CacheStack) -> None:
    """Padding counts where an answer's place is sought among all tokens, and where noise has the scale of all tokens."""
    question = replace(CASE, family="bert_question_answering")
    noisy = replace(CASE, family="bert_classification", feature_noise=0.1)
    assert [own_tokens(build_case(case)) for case in (question, noisy)] == [None, None]
    cached = train(question, stack)
    assert cached.counts[4].hits > 0 and cached.run.digest == uncached(question).run.digest


def test_noise_after_the_cache_is_the_same_whether_a_value_was_read_or_computed(stack: CacheStack) -> None:
    case = replace(CASE, feature_noise=0.1, steps=6)
    cached = train(case, stack)
    assert cached.counts[2].hits > 0
    assert cached.run.losses == uncached(case).run.losses != uncached(replace(CASE, steps=6)).run.losses


@pytest.mark.parametrize("codec", CODECS)
def test_a_lossy_codec_is_part_of_the_function_and_none_is_not(codec: str) -> None:
    plain, coded = uncached(CASE), uncached(replace(CASE, codec=codec))
    assert coded.run.losses[1] == plain.run.losses[1]
    assert (coded.run.losses == plain.run.losses) == (codec == "none")


@pytest.mark.parametrize("codec", CODECS)
def test_killing_redis_in_the_middle_changes_nothing(codec: str, stack: CacheStack) -> None:
    case = replace(CASE, codec=codec)
    whole = uncached(case)

    def kill(step: int) -> None:
        if step == 5:
            stack.shards[0].stop()

    killed = train(case, stack, kill)
    assert killed.run.losses == whole.run.losses
    assert killed.counts[2].hits > 0, "the cache was in use before"
    assert killed.counts[4].hits == 0, "and is gone after"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("family", ["vit", "bert_classification", "llama"])
def test_a_sample_has_one_boundary_activation_in_any_tile(family: str, dtype: str, stack: CacheStack) -> None:
    context = build_case(Case(family, dtype))
    tile = SAMPLE if find_place_dependence(context) else MICRO_BATCH  # as the controller would choose on any machine
    plan = lone_plan(Layout(1, 1).placement(0)).model_copy(update={"prefix_tile": tile})
    generation = Generation(context, plan, 0, lone_groups(), 3, lambda name: None)
    used = stack.connect(context.hidden_shape, context.dtype, shadow_audit_fraction=0.0)
    stack.ready(used, identity(f"{family}-{dtype}", 3), None, TRAIN_ROWS)
    reader = PrefixReader(context, generation.stages[0], context.data.train, used, 3, None)
    never = stack.connect(context.hidden_shape, context.dtype)
    missing = PrefixReader(context, generation.stages[0], context.data.train, never, 3, None)

    def rows(which: PrefixReader, samples: list[int]) -> torch.Tensor:
        return which.rows(samples, [0] * len(samples))

    sample = 5
    tiles = [rows(missing, [sample]), rows(missing, [9, sample])[1:], rows(missing, [sample, 20])[:1],
             rows(missing, [1, 2, -1, 3, sample, -1])[4:5]]  # fmt: skip
    filled = rows(reader, [sample, 17, 18])
    assert used.flush(20.0)
    read = rows(reader, [24, sample, 18])
    assert used.take_counts().hits == 2
    for other in (*tiles, read[1:2]):
        assert torch.equal(other[0].view(torch.uint8), filled[0].view(torch.uint8))
    assert torch.equal(read[2], filled[2]) and not torch.equal(read[0], read[1])
    with_micro_batch = generation.stages[0].run_frozen(None, context.on_device(context.data.train.collate([sample, 8], [0, 0])))
    assert torch.equal(with_micro_batch[0], filled[0])


# ---- kernels whose results for a row depend on its place


def test_one_sample_at_a_time_cached_and_uncached_runs_are_equal_on_any_kernel(stack: CacheStack) -> None:
    case = replace(CASE, family="vit", audit_fraction=1.0)
    with planted():
        plain = train(case, None, tile=SAMPLE)
        cached = train(case, stack, tile=SAMPLE)
    assert cached.run.losses == plain.run.losses and cached.run.unit_norms == plain.run.unit_norms
    assert cached.counts[2].hits > 0 and cached.counts[4].previous_hits > 0
    assert cached.counts[4].audited > 0


def test_whole_tiles_would_not_be_equal_there(stack: CacheStack) -> None:
    """The reason for the check of tiles: where it is skipped, hits and misses change the losses."""
    case = replace(CASE, family="vit")
    with planted():
        assert train(case, stack).run.losses != train(case, None).run.losses


def test_the_two_tiles_are_two_keys(stack: CacheStack) -> None:
    """On even kernels both tiles give the same values, yet neither reads the other's. Within one epoch all values are new."""
    case = replace(CASE, family="vit", steps=3)
    assert train(case, stack).counts[2].hits == 0
    assert train(case, stack, tile=SAMPLE).counts[2].hits == 0
    assert train(case, stack, tile=SAMPLE).counts[2].hits > 0
