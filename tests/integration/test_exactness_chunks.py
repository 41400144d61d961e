"""Head and loss in chunks of tokens: equal bits in all shapes, equal to the whole loss but for rounding, part of the numerics
(docs/protocols.md 1.19)."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.engine_member import Run
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_exactness import differences
from tests.warm_workers import WarmWorkers

CASE = Case("gpt2_tied", freezing=((3, 2),), steps=4, loss_chunk_tokens=6)
"""Sixteen tokens in chunks of six: two whole chunks and a rest."""
LAYOUTS = (Layout(4, 1), Layout(2, 2), Layout(1, 3), Layout(2, 1, 2, "interleaved_1f1b"))


@cache
def alone(workers: WarmWorkers, case: Case) -> Run:
    (run,) = run_series(workers, case, [Segment(Layout(1, 1), case.steps)])
    return run


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_shapes_have_the_bits_of_one_worker(dtype: str, layout: Layout, warm_workers: WarmWorkers) -> None:
    case = replace(CASE, dtype=dtype)
    one = alone(warm_workers, case)
    runs = run_series(warm_workers, case, [Segment(layout, case.steps)])
    assert {(run.digest, run.guard) for run in runs} == {(one.digest, one.guard)}
    assert all(list(run.losses.values()) == list(one.losses.values()) for run in runs)


@pytest.mark.wide
def test_chunks_of_logits_in_tiles_have_the_bits_of_one_worker(warm_workers: WarmWorkers) -> None:
    case = replace(CASE, inner_tiles=2, vocabulary_tiles=True)
    one = alone(warm_workers, case)
    runs = run_series(warm_workers, case, [Segment(grouped(2, 1, 2), case.steps)])
    assert {(run.digest, run.guard) for run in runs} == {(one.digest, one.guard)}


def test_one_chunk_of_all_tokens_has_the_oracles_bits(warm_workers: WarmWorkers) -> None:
    """A sum over one chunk is that chunk's loss; its recomputation in the backward has the bits of the first computation."""
    case = replace(CASE, loss_chunk_tokens=16, dropout=0.0)
    runs = run_series(warm_workers, case, [Segment(Layout(2, 1), case.steps)])
    assert differences(replace(case, loss_chunk_tokens=0), runs) == []


def test_a_loss_in_chunks_is_the_loss_to_rounding(warm_workers: WarmWorkers) -> None:
    """In float64, with sums of 16 tokens, 1e-12 is thousands of roundings; a missing chunk would be a third of the loss."""
    case = replace(CASE, dtype="float64", dropout=0.0)
    chunked, whole = alone(warm_workers, case), alone(warm_workers, replace(case, loss_chunk_tokens=0))
    assert list(chunked.losses.values()) == pytest.approx(list(whole.losses.values()), rel=1e-12)
    assert list(chunked.gradient_norms.values()) == pytest.approx(list(whole.gradient_norms.values()), rel=1e-10)


def test_another_size_is_another_numerics() -> None:
    named = {build_case(replace(CASE, loss_chunk_tokens=size)).numerics for size in (0, 6, 7)}
    assert named == {"", "loss in chunks of 6 tokens", "loss in chunks of 7 tokens"}
    mixed = build_case(replace(CASE, dtype="mixed_bfloat16")).numerics
    assert mixed == f"mixed_bfloat16: boundaries {torch.bfloat16}, loss in chunks of 6 tokens"
