"""The paper's greedy partitioner: its published thresholds, and as a planner of its own."""

from collections.abc import Sequence

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_controller.planner.pipetransformer_rule import (
    ACTIVE_ONLY,
    FROZEN_COST,
    compressed_stages,
    greedy_bounds,
    largest_stage,
    weights,
)
from frostline_controller.planner.search import make_plan
from tests.unit.controller.planner_cases import inputs, unit

VIT_EMBEDDING = 768 * (16 * 16 * 3) + 768 + (1 + 197) * 768
VIT_HEAD = 2 * 768 + 768 * 1000 + 1000
BERT_EMBEDDING = (30522 + 512 + 2) * 1024 + 2 * 1024
BERT_HEAD = 2 * 1024 + 2


def transformer_half_blocks(num_blocks: int, hidden: int) -> list[int]:
    """Parameters of each half-block: attention (four hidden x hidden matrices), MLP (two of hidden x 4 hidden), with biases
    and the LayerNorm of each."""
    attention = 4 * hidden * hidden + 4 * hidden + 2 * hidden
    mlp = 8 * hidden * hidden + 5 * hidden + 2 * hidden
    return [attention, mlp] * num_blocks


def compression_thresholds(
    embedding: int, half_blocks: Sequence[int], head: int, start_stages: int, frozen_cost: float = ACTIVE_ONLY
) -> dict[int, int]:
    """For each K below `start_stages` that is reached: the least number of frozen layers at which it is."""
    largest = largest_stage(weights(embedding, half_blocks, head, 0, frozen_cost), start_stages)
    stages, thresholds = start_stages, {}
    for frozen_layers in range(len(half_blocks) // 2 + 1):
        sizes = weights(embedding, half_blocks, head, frozen_layers, frozen_cost)
        smaller = compressed_stages(stages, sizes, largest)
        while stages > smaller:
            stages //= 2
            thresholds[stages] = frozen_layers
    return thresholds


@pytest.mark.parametrize(
    ("model", "start", "thresholds"),
    [
        ((VIT_EMBEDDING, transformer_half_blocks(12, 768), VIT_HEAD), 8, {4: 5, 2: 9, 1: 11}),
        ((VIT_EMBEDDING, transformer_half_blocks(12, 768), VIT_HEAD), 4, {2: 6, 1: 9}),
        ((BERT_EMBEDDING, transformer_half_blocks(24, 1024), BERT_HEAD), 8, {4: 9, 2: 17, 1: 21}),
    ],
)
def test_the_published_thresholds(model, start, thresholds):
    assert compression_thresholds(*model, start) == thresholds


def test_with_the_papers_memory_ratio_one_stage_is_never_reached():
    model = VIT_EMBEDDING, transformer_half_blocks(12, 768), VIT_HEAD
    assert compression_thresholds(*model, 8, FROZEN_COST) == {4: 6, 2: 11}
    assert sum(weights(*model, 11, FROZEN_COST)) > largest_stage(weights(*model, 0, ACTIVE_ONLY), 8)


def test_half_blocks_have_a_transformers_parameters():
    assert sum(transformer_half_blocks(12, 768)) + VIT_EMBEDDING + VIT_HEAD == 86_567_656  # ViT-B/16 with 1000 classes
    assert greedy_bounds([1.0, 1.0, 1.0, 1.0], 2) == [0, 1, 4]  # "<": a stage stops short of the mean


def vit(hidden: int = 768):
    block = 12 * hidden * hidden + 13 * hidden
    return [unit(0.001, 4 * VIT_EMBEDDING), *[unit(0.01, 4 * block)] * 12, unit(0.001, 4 * VIT_HEAD)]


def test_as_a_planner_it_halves_the_pipeline_and_doubles_the_replicas():
    shapes = {}
    for frozen_layers in range(12):
        case = inputs(
            vit(),
            16,
            freeze_point=frozen_layers + 1 if frozen_layers else 0,
            start_pp_degree=8,
            num_microbatches=16,
            reduction_leaves=16,
            placement=PlacementSection(workers=16, planner="paper_greedy", initial_pp_degree=8),
        )
        placement = make_plan(case).placement
        shapes[frozen_layers] = (placement.pp_degree, placement.dp_degree)
        assert placement.shape.num_stages == 1 or placement.stage_bounds[1] > case.freeze_point
    assert shapes[0] == shapes[4] == (8, 2)
    assert shapes[5] == shapes[8] == (4, 4)
    assert shapes[9] == (2, 8)
    assert shapes[11] == (1, 16)


def test_pinned_replicas_leave_it_the_rest_of_the_workers() -> None:
    planned = make_plan(inputs(8, 4, placement=PlacementSection(workers=4, planner="paper_greedy", dp_degree=2)))
    assert planned.placement.degrees == {"dp": 2, "pp": 2}


def test_it_refuses_what_exceeds_the_memory_cap_with_both_numbers():
    wanted = PlacementSection(planner="paper_greedy", worker_memory_bytes=10**8)
    with pytest.raises(ValueError, match=r"needs [\d,]+ bytes a worker, and placement.worker_memory_bytes is 100,000,000;"):
        make_plan(inputs(vit(), 4, placement=wanted))


def test_the_optimal_planner_is_never_slower():
    for freeze_point in (0, 4, 8, 12):
        paper = make_plan(
            inputs(vit(), 8, freeze_point=freeze_point, placement=PlacementSection(workers=8, planner="paper_greedy"))
        )
        optimal = make_plan(inputs(vit(), 8, freeze_point=freeze_point, placement=PlacementSection(workers=8)))
        assert optimal.cost.total_seconds <= paper.cost.total_seconds * (1 + 1e-9)
