"""Every schedule runs every action once, waits for nothing that never comes, and takes backwards in micro-batch order."""

import contextlib

import pytest
import torch
from torch import nn

from frostline_contract.operations import GIVES_INPUT_GRADIENT, GIVES_WEIGHT_GRADIENT, Kind, Operation, Order
from frostline_contract.schedules import (
    BUILT_IN,
    Schedule,
    gpipe,
    interleaved,
    one_forward_one_backward,
    schedule_named,
)
from frostline_contract.shape import stages_of
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.schedules import Action, check_schedule
from tests.split_backwards import VIRTUAL_STAGES


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(("pp_degree", "virtual_stages"), [(1, 1), (2, 1), (4, 1), (2, 2), (3, 2), (1, 3)])
def test_a_stages_backwards_come_in_micro_batch_order(name: str, pp_degree: int, virtual_stages: int) -> None:
    """Leaves add their micro-batches in order, so that order is part of the numbers."""
    if virtual_stages not in VIRTUAL_STAGES.get(name, (virtual_stages,)):
        with pytest.raises(ValueError, match="virtual_stages is"):
            BUILT_IN[name].operations(0, pp_degree, virtual_stages, 4)
        return
    for num_microbatches in (1, 2, 3, 7):
        for pp_rank in range(pp_degree):
            actions = BUILT_IN[name].operations(pp_rank, pp_degree, virtual_stages, num_microbatches)
            for stage in stages_of(pp_rank, pp_degree, virtual_stages, BUILT_IN[name].folded):
                for kinds in ((Kind.FORWARD,), GIVES_INPUT_GRADIENT, GIVES_WEIGHT_GRADIENT):
                    order = [a.micro_batch for a in actions if a.stage == stage and a.kind in kinds]
                    assert order == list(range(num_microbatches))


def in_flight(operations: list[Operation]) -> int:
    most = now = 0
    for operation in operations:
        now += 1 if operation.kind is Kind.FORWARD else -1
        most = max(most, now)
    return most


def test_1f1b_keeps_few_micro_batches_and_gpipe_all() -> None:
    for pp_rank in range(4):
        assert in_flight(one_forward_one_backward(pp_rank, 4, 1, 16)) == 4 - pp_rank
        assert in_flight(gpipe(pp_rank, 4, 1, 16)) == 16
        assert in_flight(interleaved(pp_rank, 4, 2, 16)) < 16


@pytest.mark.parametrize(("name", "virtual_stages"), [("gpipe", 1), ("gpipe", 2), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_a_built_in_schedules_figures_are_those_that_are_counted(name: str, virtual_stages: int) -> None:
    """Memory is never more than the figure, and equal for GPipe and 1F1B; the bubble is equal where all stages are equal."""
    schedule = BUILT_IN[name]
    reported, counted = schedule.known_figures, Schedule(schedule.order).known_figures
    for pp_degree in (2, 3, 4):
        for num_microbatches in (pp_degree, 2 * pp_degree, 16 * pp_degree):
            shape = (pp_degree, virtual_stages, num_microbatches)
            held = [(reported.in_flight(r, *shape), counted.in_flight(r, *shape)) for r in range(pp_degree)]
            assert all(mine >= real for mine, real in held), (shape, held)
            assert name == "interleaved_1f1b" or all(mine == real for mine, real in held), (shape, held)
            forward, backward = [1.0] * pp_degree, [2.0] * pp_degree
            for r in range(pp_degree):
                waits = [one.bubble(r, forward, backward, virtual_stages, num_microbatches) for one in (reported, counted)]
                assert (name == "gpipe" and virtual_stages == 2) or waits[0] == pytest.approx(waits[1]), (shape, waits)


def test_interleaved_alternates_between_its_stages_in_rounds() -> None:
    forwards = [(a.stage, a.micro_batch) for a in interleaved(1, 2, 2, 3) if a.kind is Kind.FORWARD]
    assert forwards == [(1, 0), (1, 1), (3, 0), (3, 1), (1, 2), (3, 2)]


def broken(kind: str):
    def schedule(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
        actions = gpipe(pp_rank, pp_degree, virtual_stages, num_microbatches)
        if kind == "repeats" and pp_rank == 1:
            return [*actions, actions[-1]]
        if kind == "misses" and pp_rank == 0:
            return actions[:-1]
        if kind == "waits" and pp_rank == 0:
            return actions[::-1]
        return actions

    return schedule


@pytest.mark.parametrize(
    ("kind", "words"),
    [("repeats", "repeats"), ("misses", "misses operations on pp_rank 0: 3 of 3 forwards, 2 of 3"), ("waits", "ever")],
)
def test_a_wrong_schedule_is_found(kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_schedule(broken(kind), 2, 1, [1, 1, 1])


def test_an_unknown_schedule_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'zigzag'; known: gpipe, 1f1b, interleaved_1f1b, zb_h1, zb_h2, zb_v, v_half, v_min"):
        schedule_named("zigzag")


def newest_first(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    forwards = [Action(True, pp_rank, m) for m in range(num_microbatches)]
    return forwards + [Action(False, pp_rank, m) for m in reversed(range(num_microbatches))]


def crossing(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    """Return backwards that ascend in every leaf, but alternate between two leaves of two."""
    return [action for m in (0, 2, 1, 3) for action in (Action(True, pp_rank, m), Action(False, pp_rank, m))]


def test_a_schedule_that_would_lose_gradients_of_a_leaf_is_found() -> None:
    check_schedule(newest_first, 2, 1, [1, 1, 1, 1])  # leaves may come in any order
    words = r"gradient of micro-batch 3 on stage 0 first: it belongs to one leaf with micro-batch 2"
    with pytest.raises(ValueError, match=f"{words}.*set training.reduction_leaves"):
        check_schedule(newest_first, 2, 1, [2, 2])
    with pytest.raises(ValueError, match="gradient of micro-batch 1 on stage 0 after that of 2"):
        check_schedule(crossing, 1, 1, [2, 2])


def gradient(order: Order, leaf_sizes: list[int]) -> dict[tuple[int, int], float]:
    """Return one stage's sum of four gradients; the sum depends on the order."""
    values = (1e8, -1e8, 3.0, 5.0)
    parameter = nn.Parameter(torch.zeros(1))
    buffers = GradientBuffers([(0, [parameter])], sum(leaf_sizes), len(leaf_sizes))
    for operation in Schedule(order).operations(0, 1, 1, sum(leaf_sizes)):
        if operation.kind is Kind.BACKWARD:
            buffers.before_backward(operation.micro_batch)
            parameter.grad += values[operation.micro_batch]
            buffers.after_backward(operation.micro_batch)
    return {node: buffer[0].item() for node, buffer in buffers.pieces().items()}


@pytest.mark.parametrize("schedule", [newest_first, crossing, gpipe])
@pytest.mark.parametrize("leaf_sizes", [[1, 1, 1, 1], [2, 2], [4]])
def test_what_the_check_passes_has_the_sum_of_the_tree(schedule: Order, leaf_sizes: list[int]) -> None:
    whole = gradient(gpipe, leaf_sizes)
    try:
        check_schedule(schedule, 1, 1, leaf_sizes)
    except ValueError:
        with contextlib.suppress(KeyError):
            assert gradient(schedule, leaf_sizes) != whole, "refused without need"
    else:
        assert gradient(schedule, leaf_sizes) == whole
