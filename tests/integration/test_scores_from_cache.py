"""Scores of the guard and the test split that read the frozen prefix from a cache have the bits of computed ones."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frostline_contract.plan import MICRO_BATCH, SAMPLE, Decision, PrefixTile
from frostline_contract.run_directory import RunDirectory
from frostline_rpc.auth import WORKER
from frostline_trainer.cache import control
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.generations.run_end import final_score
from frostline_trainer.prefix import cache_use, split_caches
from frostline_trainer.prefix.cache_access import CacheAccess
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.prefix.split_caches import SplitCaches
from frostline_trainer.prefix.tile_check import find_place_dependence
from frostline_trainer.replication.wrong_bits import CacheDiffers
from frostline_trainer.step import evaluation
from frostline_trainer.step.evaluation import evaluate
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from tests.cache_stack import CacheStack, cache_stack, wait_patiently
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, lone_plan
from tests.in_time import fastest_of_three, in_time
from tests.uneven_kernel import planted

GUARD_ROWS, TEST_ROWS = 9, 5


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheStack]:
    wait_patiently(monkeypatch)  # a stalled machine is no silent Redis
    for module, limit in ((split_caches, "ADMISSION_SECONDS"), (cache_use, "PATIENCE_SECONDS"), (control, "CALL_SECONDS"),
                          (evaluation, "LATE_SECONDS")):  # fmt: skip
        monkeypatch.setattr(module, limit, 20.0)
    with cache_stack(tmp_path) as started:
        yield started


@pytest.fixture
def shared(stack: CacheStack) -> CacheStack:
    """A cache server that other runs use too."""
    RunDirectory(stack.run_dir).cache_token.write_text(stack.tokens.by_role[WORKER])
    return stack


@contextmanager
def frozen_to(point: int, case: Case, stack: CacheStack | None, tile: PrefixTile = MICRO_BATCH) -> Iterator[tuple]:
    """A worker's generation at a freeze point, and its use of the stack's cache."""
    context, state = build_case(case), RunState(freeze_point=point, codec_chain=[point])
    state.decisions.append(Decision(number=1, interval=1, effective_step=1, freeze_point=point, kind="freeze"))
    placement = Layout(1, 1).placement(0).model_copy(update={"use_cache": stack is not None})
    plan = lone_plan(placement).model_copy(update={"prefix_tile": tile})
    address, token = (stack.address, stack.tokens.by_role[WORKER]) if stack else ("", "")
    caching = CacheUse(context, address, token, f"worker-{id(context)}", stack.run_dir if stack else Path())
    generation = Generation(context, plan, 0, lone_groups(), point, lambda name: None, (point,), caching.round_trip)
    try:
        caching.connect(generation, state)
        yield generation, caching
    finally:
        caching.close()


def caches(caching: CacheUse) -> dict[str, BoundaryCache]:
    """The opened caches of splits that are scored."""
    return {name: cache for name, cache in caching._caches._opened.items() if name != "train"}


def scores(generation: Generation, caching: CacheUse) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of guard and test; what was computed is in the cache afterwards."""
    data = generation.context.data
    rows = evaluate(generation, data.guard, 3)[0], evaluate(generation, data.test, 3)[0]
    assert all(cache.flush(20.0) for cache in caches(caching).values())
    return rows


def hits(caching: CacheUse) -> dict[str, int]:
    return {name: cache.take_counts().hits for name, cache in caches(caching).items()}


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
        with frozen_to(3, case, None, tile) as (plain, uncached):
            wanted = scores(plain, uncached)
        with frozen_to(3, case, shared, tile) as first:
            assert equal(scores(*first), wanted) and hits(first[1]) == {"guard": 0, "test": 0}
            assert equal(scores(*first), wanted) and hits(first[1]) == {"guard": GUARD_ROWS, "test": TEST_ROWS}
        with frozen_to(3, case, shared, tile) as (other, caching):
            assert final_score(other, 3) == evaluate(plain, plain.context.data.test, 3)[1]
            assert equal(scores(other, caching), wanted)
            assert hits(caching) == {"guard": GUARD_ROWS, "test": 2 * TEST_ROWS}, "another run starts warm"
            assert caching.take_counts() == (0, 0), "a score is no step: the planner counts what steps read"


def spoil(generation: Generation, caching: CacheUse, split: str) -> BoundaryCache:
    """Fill a split's cache with wrong values, signed by the worker that computed them."""
    cache = caching._caches.for_scores(getattr(generation.context.data, split))
    assert cache is not None
    cache.before_fill = lambda rows: rows + 1
    scores(generation, caching)
    return cache


@pytest.mark.parametrize("split", ["guard", "test"])
def test_a_wrong_value_that_an_audit_finds_ends_the_generation(split: str, shared: CacheStack) -> None:
    """As in a step, and every step since the cache's first use is distrusted: who wrote it may have written their values too."""
    with frozen_to(3, Case("gpt2_tied", audit_fraction=1.0), shared) as (generation, caching):
        cache, data = spoil(generation, caching, split), generation.context.data
        with pytest.raises(
            CacheDiffers, match=f"of the {split} split at boundary 3 differ from recomputed ones, step 8"
        ) as raised:
            final_score(generation, 8) if split == "test" else evaluate(generation, data.guard, 8)
        assert raised.value.first_step == 0 and cache.take_counts().audit_failures > 0


def test_each_run_of_a_sweep_audits_other_tiles_of_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs of one length are scored at one step; replicas audit the same micro-batches of a step, whatever their run."""
    monkeypatch.setattr(split_caches, "ADMISSION_SECONDS", 0.0)
    context = build_case(Case("gpt2_tied", audit_fraction=0.5))

    def due(split: str, run_dir: str) -> list[bool]:
        caches = SplitCaches(context, CacheAccess("127.0.0.1:1", "token", "worker", Path(run_dir), True), None)
        cache = caches.open_train() if split == "train" else caches.for_scores(getattr(context.data, split))
        assert cache is not None
        caches.close()
        return [cache.audit_due(sample, 8) for sample in range(64)]

    assert due("test", "/runs/1") != due("test", "/runs/2")
    assert due("train", "/runs/1") == due("train", "/runs/2")
    assert 8 < sum(due("test", "/runs/1")) < 56


def test_behind_a_late_tile_the_others_are_computed(shared: CacheStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is slow, not down, would be waited for at each tile; all replicas wait for a score."""
    with frozen_to(3, Case("gpt2_tied"), shared) as (generation, caching):
        wanted, size = scores(generation, caching), generation.context.micro_batch_size
        hits(caching)
        monkeypatch.setattr(evaluation, "LATE_SECONDS", -1.0)
        assert equal(scores(generation, caching), wanted)
        assert hits(caching) == {"guard": size, "test": size}
        monkeypatch.setattr(evaluation, "LATE_SECONDS", 20.0)
        assert equal(scores(generation, caching), wanted)
        assert hits(caching) == {"guard": GUARD_ROWS, "test": TEST_ROWS}, "the next score asks again"


@fastest_of_three
def test_a_server_that_is_not_there_holds_a_first_score_up_by_the_wait_for_admission(tmp_path: Path) -> None:
    caches = SplitCaches(build_case(Case("vit")), CacheAccess("127.0.0.1:1", "token", "worker", tmp_path, True), None)
    try:
        caches.set_boundary((3, "revision"), None)
        started = time.monotonic()
        cache = caches.for_scores(caches._context.data.guard)
        assert cache is not None and cache.read([0], [0], torch.empty(1, *cache.codec.value_shape)) == [False]
        in_time(time.monotonic() - started, split_caches.ADMISSION_SECONDS + 1.0)
    finally:
        caches.close()


def test_values_of_the_previous_boundary_are_advanced(stack: CacheStack) -> None:
    case = Case("gpt2_tied")
    with frozen_to(4, case, None) as (plain, _):
        wanted = evaluate(plain, plain.context.data.guard, 3)[0]
    with frozen_to(2, case, stack) as (generation, caching):
        scores(generation, caching)
        state = RunState(freeze_point=4, codec_chain=[2, 4])
        for number, point in enumerate((2, 4), 1):
            state.decisions.append(Decision(number=number, interval=number, effective_step=1, freeze_point=point, kind="freeze"))
        generation.freeze_to(4, (2, 4), None)
        caching.connect(generation, state)
        rows, _ = evaluate(generation, generation.context.data.guard, 3)
        assert equal((rows,), (wanted,))
        assert caches(caching)["guard"].take_counts().previous_hits == GUARD_ROWS


def test_the_test_split_is_scored_once_so_only_a_shared_cache_holds_it(stack: CacheStack) -> None:
    with frozen_to(3, Case("gpt2_tied"), stack) as (generation, caching):
        assert not caches(caching), "opened when it is needed, behind what steps read"
        scores(generation, caching)
        assert list(caches(caching)) == ["guard"]


def test_with_a_lossy_codec_scores_are_computed(shared: CacheStack) -> None:
    with frozen_to(3, replace(Case("gpt2_tied"), codec="int8"), shared) as (generation, caching):
        scores(generation, caching)
        assert generation.prefix is not None and not caches(caching)


def test_a_redis_that_dies_changes_no_score(shared: CacheStack) -> None:
    with frozen_to(3, Case("vit"), None) as uncached:
        wanted = scores(*uncached)
    with frozen_to(3, Case("vit"), shared) as cached:
        assert equal(scores(*cached), wanted)
        shared.shards[0].stop()
        assert equal(scores(*cached), wanted) and hits(cached[1]) == {"guard": 0, "test": 0}
