"""Zero-bubble orders: what they hold and how long they take on paper, with nothing frozen and behind frozen stages."""

from itertools import product

import pytest

from frostline_contract.operations import CLOSING, Kind, Operation
from frostline_contract.schedule_figures import timeline
from frostline_contract.schedules import BUILT_IN
from frostline_contract.zero_bubble import zero_bubble

SHAPES = list(product((2, 3, 4, 6), (1, 2, 5, 8, 16), (1, 2, 4)))


def orders(name: str, pp_degree: int, num_microbatches: int, slices: int, first_learning: int = 0) -> list[list[Operation]]:
    shape = (pp_degree, 1, num_microbatches, slices, first_learning)
    return [BUILT_IN[name].operations(pp_rank, *shape) for pp_rank in range(pp_degree)]


def seconds(name: str, pp_degree: int, num_microbatches: int, slices: int = 1) -> float:
    """Of a step in which a forward and the two gradients of a slice take one second each."""
    times = [1.0 * slices] * pp_degree, [2.0 * slices] * pp_degree
    return max(one.end for one in timeline(orders(name, pp_degree, num_microbatches, slices), *times))


def most_held(order: list[Operation]) -> int:
    held = most = 0
    for operation in order:
        held += (operation.kind is Kind.FORWARD) - (operation.kind in CLOSING)
        most = max(most, held)
    return most


@pytest.mark.parametrize(("pp_degree", "num_microbatches", "slices"), SHAPES)
def test_h1_holds_what_1f1b_does_on_its_first_rank_and_takes_less_time(
    pp_degree: int, num_microbatches: int, slices: int
) -> None:
    most = most_held(orders("1f1b", pp_degree, num_microbatches, slices)[0])
    assert all(most_held(order) <= most for order in orders("zb_h1", pp_degree, num_microbatches, slices))
    assert seconds("zb_h1", pp_degree, num_microbatches, slices) < seconds("1f1b", pp_degree, num_microbatches, slices)


@pytest.mark.parametrize(("pp_degree", "num_microbatches", "slices"), SHAPES)
def test_h2_holds_more_and_its_ranks_wait_for_the_first_forwards_alone(
    pp_degree: int, num_microbatches: int, slices: int
) -> None:
    """From 2 p - 1 slices on: the last rank begins when p - 1 forwards have reached it, and then nobody waits any more."""
    held = [most_held(order) for order in orders("zb_h2", pp_degree, num_microbatches, slices)]
    assert max(held) <= min(num_microbatches * slices, 2 * pp_degree - 1 + slices - 1)
    found = seconds("zb_h2", pp_degree, num_microbatches, slices)
    assert found <= seconds("zb_h1", pp_degree, num_microbatches, slices)
    if num_microbatches * slices >= 2 * pp_degree - 1 and num_microbatches > 1:
        assert found == 3 * num_microbatches * slices + pp_degree - 1


@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
def test_frozen_stages_go_forward_alone_and_the_others_are_ordered_as_a_shorter_pipeline(name: str) -> None:
    """The order is made anew for each first stage that learns: no room is kept for gradients that never come."""
    for frozen in range(4):
        found = orders(name, 4, 8, 2, frozen)
        for stage in range(frozen):
            assert found[stage] == [Operation(Kind.FORWARD, stage, m) for m in range(8)]
        assert {one.kind for one in found[frozen]} == {Kind.FORWARD, Kind.BACKWARD}
        for stage in range(frozen + 1, 4):
            assert {one.kind for one in found[stage]} == {Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT}
        shorter = max(most_held(order) for order in orders(name, 4 - frozen, 8, 2))
        assert max(most_held(order) for order in found[frozen:]) == shorter
    thawed = BUILT_IN[name].operations(2, 4, 1, 8, 2)
    assert thawed != BUILT_IN[name].operations(2, 4, 1, 8, 2, 1)


def test_virtual_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="virtual_stages is 2; set it to 1"):
        zero_bubble((1, 0), 0, 2, 2, 4)
