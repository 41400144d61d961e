"""The costs of units on one member of a group that shares tiles (`planner.tensor.built`)."""

from dataclasses import replace

import pytest

from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.leaves import gradient_buffers
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.traffic import Axes
from tests.unit.controller.planner_cases import inputs
from tests.unit.controller.test_planner_groups import FAST


def test_a_member_has_its_part_of_blocks_that_learn_and_all_of_the_rest() -> None:
    case = inputs(6, 4, freeze_point=2, near_link=FAST)
    member = in_groups_as_built(case, Axes(4), at_home=4)
    assert [new is old for new, old in zip(member.units, case.units, strict=True)] == [True, False, False, False, False, True]
    block, whole = member.units[2], case.units[2]
    sums = 2 * 2 * 3 / 4 * whole.output_bytes / 1e11 + 4 * 1e-6  # two all-reduces a pass
    assert block.forward_seconds == pytest.approx(whole.forward_seconds * (0.01 + 0.99 / 4) + sums)
    assert block.backward_seconds == pytest.approx(whole.backward_seconds * (0.01 + 0.99 / 4) + sums)
    assert block.activation_bytes == round(whole.activation_bytes * (10 / 34 + 24 / 34 / 4))
    assert all(getattr(block, name) == getattr(whole, name) for name in ("working_bytes", "output_bytes"))
    state = ("parameter_bytes", "optimizer_bytes")
    assert all(getattr(block, name) == round(getattr(whole, name) / 4) for name in state), "a member holds its tiles"
    assert member.optimizer_seconds_per_byte == case.optimizer_seconds_per_byte, "nothing is collected"
    assert in_groups_as_built(case, Axes(1), at_home=1) is case


def test_a_frozen_block_is_whole_and_its_moments_are_divided() -> None:
    case = inputs(6, 4, freeze_point=2, near_link=FAST)
    frozen, whole = in_groups_as_built(case, Axes(4), at_home=4).units[1], case.units[1]
    assert frozen == whole.model_copy(update={"optimizer_bytes": round(whole.optimizer_bytes / 4)})


def test_tiles_of_the_vocabulary_divide_embedding_and_head() -> None:
    case = inputs(6, 4, near_link=FAST)
    plain = in_groups_as_built(case, Axes(4), at_home=4).units
    both = in_groups_as_built(replace(case, tiled_ends=(True, True)), Axes(4), at_home=4).units
    assert both[1:-1] == plain[1:-1]
    for place in (0, -1):
        assert both[place].parameter_bytes == round(plain[place].parameter_bytes / 4)
        assert both[place].optimizer_bytes == round(plain[place].optimizer_bytes / 4)
    a_sum = 2 * 3 / 4 * case.units[1].output_bytes / 1e11 + 2e-6  # an all-to-all and a gather of one hidden state
    seconds = [sum((one[place].forward_seconds, one[place].backward_seconds)) for one in (both, plain) for place in (0, -1)]
    assert seconds[0] == pytest.approx(seconds[2] + a_sum)
    assert seconds[1] == pytest.approx(seconds[3] * (0.01 + 0.99 / 4) + a_sum)


def test_a_frozen_embedding_in_tiles_is_whole_but_for_its_moments() -> None:
    case = replace(inputs(6, 4, freeze_point=2, near_link=FAST), tiled_ends=(True, False))
    whole, found = case.units[0], in_groups_as_built(case, Axes(4), at_home=4).units
    assert found[0] == whole.model_copy(update={"optimizer_bytes": round(whole.optimizer_bytes / 4)})
    assert found[-1] == case.units[-1]


@pytest.mark.parametrize("shard", ["step", "use"])
def test_a_member_holds_its_replicas_ranges_of_its_own_tiles(shard: str) -> None:
    """Of a block that learns a fourth by tile and of that a half by range; other inputs do not know of ranges."""
    plain = inputs(6, 8, near_link=FAST, state_ranges=2, reduction_leaves=2)
    section = plain.placement.model_copy(update={"shard": shard})
    case = replace(plain, placement=section)
    member = in_groups_as_built(case, Axes(4), at_home=4)
    assert member == replace(in_groups_as_built(replace(case, state_ranges=1), Axes(4), at_home=4), state_ranges=2)
    block, whole = member.units[2], case.units[2]
    assert (block.parameter_bytes, block.optimizer_bytes) == (whole.parameter_bytes // 4, whole.optimizer_bytes // 4)
    assert member.optimizer_seconds_per_byte == case.optimizer_seconds_per_byte, "nothing is collected in a group"

    def blocks_state(bounds: tuple[int, ...]) -> float:
        """Return the bytes of one block's state, without gradients and activations, by the cost model."""
        model = CostModel(member).of_shape(1, 1)
        found = [model.stage_bytes(2, high, 0.0, bounds) - model.working_bytes[2, high] for high in (3, 4)]
        gradients = gradient_buffers(member, bounds) * (model.gradient_bytes[4] - model.gradient_bytes[3])
        return float(found[1] - found[0] - gradients)

    weights, moments = whole.parameter_bytes / 4, whole.optimizer_bytes / 4
    assert blocks_state((0, 2)) == weights + moments
    assert blocks_state((0, 1, 2)) == (weights + moments) / 2 if shard == "use" else weights + moments / 2
