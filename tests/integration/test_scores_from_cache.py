"""Scores of the guard and the test split that read the frozen prefix from a cache have the bits of computed ones."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frostline_contract.plan import MICRO_BATCH, SAMPLE, Decision, PrefixTile
from frostline_contract.run_directory import RunDirectory
from frostline_rpc.auth import WORKER
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.generations.run_end import final_score
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.prefix.tile_check import find_place_dependence
from frostline_trainer.replication.wrong_bits import CacheDiffers
from frostline_trainer.step.evaluation import evaluate
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from tests.cache_stack import CacheStack, admitted_fraction, cache_stack, wait_patiently, wait_until
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, lone_plan
from tests.uneven_kernel import planted

GUARD_ROWS, TEST_ROWS = 9, 5


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheStack]:
    wait_patiently(monkeypatch)  # a stalled machine is no silent Redis
    with cache_stack(tmp_path) as started:
        yield started


@pytest.fixture
def shared(stack: CacheStack) -> CacheStack:
    """A cache server that other runs use too."""
    RunDirectory(stack.run_dir).cache_token.write_text(stack.tokens.by_role[WORKER])
    return stack


@contextmanager
def frozen_to(point: int, case: Case, stack: CacheStack | None, tile: PrefixTile = MICRO_BATCH) -> Iterator[tuple]:
    """A worker's generation at a freeze point, and its use of the stack's cache, all of whose values are admitted."""
    context, state = build_case(case), RunState(freeze_point=point, codec_chain=[point])
    state.decisions.append(Decision(number=1, interval=1, effective_step=1, freeze_point=point, kind="freeze"))
    placement = Layout(1, 1).placement(0).model_copy(update={"use_cache": stack is not None})
    plan = lone_plan(placement).model_copy(update={"prefix_tile": tile})
    address, token = (stack.address, stack.tokens.by_role[WORKER]) if stack else ("", "")
    caching = CacheUse(context, address, token, f"worker-{id(context)}", stack.run_dir if stack else Path())
    generation = Generation(context, plan, 0, lone_groups(), point, lambda name: None, (point,), caching.round_trip)
    try:
        caching.connect(generation, state)
        for one in caches(generation):
            wait_until(lambda one=one: one.usable and admitted_fraction(one) == 1.0)
        yield generation, caching
    finally:
        caching.close()


def caches(generation: Generation) -> list[BoundaryCache]:
    return [reader._cache for reader in generation.held_out.values()]


def scores(generation: Generation) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of guard and test; what was computed is in the cache afterwards."""
    data = generation.context.data
    rows = evaluate(generation, data.guard, 3)[0], evaluate(generation, data.test, 3)[0]
    assert all(cache.flush(20.0) for cache in caches(generation))
    return rows


def hits(generation: Generation) -> dict[str, int]:
    return {name: reader._cache.take_counts().hits for name, reader in generation.held_out.items()}


def equal(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in zip(found, wanted, strict=True))


CASES = [("gpt2_tied", "float32"), ("bert_classification", "mixed_bfloat16"), ("bert_regression", "float32"), ("vit", "float64")]


@pytest.mark.parametrize(("family", "dtype"), CASES)
@pytest.mark.parametrize("kernels", ["this machine's", "planted"])
def test_computed_filled_and_read_scores_have_the_same_bits(family: str, dtype: str, kernels: str, shared: CacheStack) -> None:
    """Planted kernels depend on a row's place in its tile, so that samples are computed one at a time."""
    case = Case(family, dtype, audit_fraction=1.0)
    with planted() if kernels == "planted" else nullcontext():
        tile = SAMPLE if find_place_dependence(build_case(case)) else MICRO_BATCH
        with frozen_to(3, case, None, tile) as (plain, _):
            wanted = scores(plain)
        with frozen_to(3, case, shared, tile) as (first, _):
            assert equal(scores(first), wanted) and hits(first) == {"guard": 0, "test": 0}
            assert equal(scores(first), wanted) and hits(first) == {"guard": GUARD_ROWS, "test": TEST_ROWS}
        with frozen_to(3, case, shared, tile) as (other, caching):
            assert final_score(other, 3) == evaluate(plain, plain.context.data.test)[1]
            assert equal(scores(other), wanted)
            assert hits(other) == {"guard": GUARD_ROWS, "test": 2 * TEST_ROWS}, "another run starts warm"
            assert caching.take_counts() == (0, 0), "a score is no step: the planner counts what steps read"


def test_a_wrong_value_that_an_audit_finds_ends_the_generation(shared: CacheStack) -> None:
    """As in a step: the value is signed by whoever wrote it, so only a recomputation shows that it is wrong."""
    case = Case("gpt2_tied", audit_fraction=1.0)
    with frozen_to(3, case, shared) as (generation, _):
        guard = generation.held_out["guard"]._cache
        guard.before_fill = lambda rows: rows + 1
        scores(generation)
        with pytest.raises(CacheDiffers, match="boundary 3 differ from recomputed ones in step 8"):
            evaluate(generation, generation.context.data.guard, 8)
        assert guard.take_counts().audit_failures > 0


def test_values_of_the_previous_boundary_are_advanced(stack: CacheStack) -> None:
    case = Case("gpt2_tied")
    with frozen_to(4, case, None) as (plain, _):
        wanted = evaluate(plain, plain.context.data.guard)[0]
    with frozen_to(2, case, stack) as (generation, caching):
        scores(generation)
        state = RunState(freeze_point=4, codec_chain=[2, 4])
        for number, point in enumerate((2, 4), 1):
            state.decisions.append(Decision(number=number, interval=number, effective_step=1, freeze_point=point, kind="freeze"))
        generation.freeze_to(4, (2, 4), None)
        caching.connect(generation, state)
        rows, _ = evaluate(generation, generation.context.data.guard)
        assert equal((rows,), (wanted,))
        assert generation.held_out["guard"]._cache.take_counts().previous_hits == GUARD_ROWS


def test_the_test_split_is_scored_once_so_only_a_shared_cache_holds_it(stack: CacheStack) -> None:
    with frozen_to(3, Case("gpt2_tied"), stack) as (generation, _):
        assert list(generation.held_out) == ["guard"]


def test_with_a_lossy_codec_scores_are_computed(shared: CacheStack) -> None:
    """The final score is measured without the codec, and the guard's rows are few."""
    with frozen_to(3, replace(Case("gpt2_tied"), codec="int8"), shared) as (generation, _):
        assert generation.prefix is not None and generation.held_out == {}


def test_a_redis_that_dies_changes_no_score(shared: CacheStack) -> None:
    with frozen_to(3, Case("vit"), None) as (plain, _):
        wanted = scores(plain)
    with frozen_to(3, Case("vit"), shared) as (generation, _):
        assert equal(scores(generation), wanted)
        shared.shards[0].stop()
        assert equal(scores(generation), wanted) and hits(generation) == {"guard": 0, "test": 0}
