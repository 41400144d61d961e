"""Zero-bubble orders: what they hold and how long they take in simulation, with nothing frozen and behind frozen stages."""

from itertools import product

import pytest

from frostline_contract.operations import GIVES_WEIGHT_GRADIENT, Kind, Operation
from frostline_contract.schedule_figures import timeline
from frostline_contract.schedules import BUILT_IN

SHAPES = list(product((2, 3, 4, 6), (1, 2, 5, 8, 16), (1, 2, 4)))


def orders(name: str, pp_degree: int, num_microbatches: int, slices: int, first_learning: int = 0) -> list[list[Operation]]:
    shape = (pp_degree, stages_a_rank(name), num_microbatches, slices, first_learning)
    return [BUILT_IN[name].operations(pp_rank, *shape) for pp_rank in range(pp_degree)]


def stages_a_rank(name: str) -> int:
    return 2 if BUILT_IN[name].folded else 1


def seconds(name: str, pp_degree: int, num_microbatches: int, slices: int = 1) -> float:
    """Of a step in which a forward and the two gradients of a slice take one second each."""
    times = [1.0 * slices] * pp_degree, [2.0 * slices] * pp_degree
    return max(one.end for one in timeline(orders(name, pp_degree, num_microbatches, slices), *times, stages_a_rank(name)))


def most_held(order: list[Operation]) -> int:
    held = most = 0
    for operation in order:
        held += (operation.kind is Kind.FORWARD) - (operation.kind in GIVES_WEIGHT_GRADIENT)
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


@pytest.mark.parametrize(("pp_degree", "num_microbatches"), list(product((2, 3, 4, 6, 8), (4, 8, 24))))
def test_a_v_takes_little_time_or_little_memory(pp_degree: int, num_microbatches: int) -> None:
    """Held are slices of stages half as long. With all the room of 1F1B's first rank a V waits for the first forwards of half a
    stage alone; with half of it, or a third, about as long as 1F1B, where there are micro-batches enough."""
    shape = (pp_degree, num_microbatches, 1)
    held = {name: max(map(most_held, orders(name, *shape))) / 2 for name in ("zb_v", "v_half", "v_min")}
    assert held["zb_v"] <= pp_degree and held["v_half"] <= (pp_degree + 1) / 2 and held["v_min"] <= pp_degree / 3 + 1
    found = [seconds(name, *shape) for name in ("zb_v", "v_half", "v_min", "1f1b")]
    if num_microbatches >= 2 * pp_degree and pp_degree > 2:
        assert found[0] == 3 * num_microbatches + (pp_degree - 1) / 2
        assert max(found[1:3]) < 1.06 * found[3]
    assert found[0] <= found[1] <= found[2]


def test_a_v_runs_the_first_and_the_last_stage_on_one_rank() -> None:
    found = [sorted({one.stage for one in order}) for order in orders("zb_v", 4, 4, 1)]
    assert found == [[0, 7], [1, 6], [2, 5], [3, 4]]
    frozen = orders("v_min", 4, 8, 2, first_learning=5)
    assert [{one.kind for one in order if one.stage < 5} for order in frozen] == [{Kind.FORWARD}] * 4
    assert Kind.BACKWARD in {one.kind for one in frozen[2] if one.stage == 5}


@pytest.mark.parametrize(("name", "wanted", "given"), [("zb_h1", 1, 2), ("v_min", 2, 1), ("zb_v", 2, 3)])
def test_another_number_of_stages_a_rank_is_refused(name: str, wanted: int, given: int) -> None:
    with pytest.raises(ValueError, match=f"runs {wanted} stages a rank, virtual_stages is {given}"):
        BUILT_IN[name].operations(0, 2, given, 4)
