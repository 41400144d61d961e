"""Adapters in decisions and plans: a lower bound of the freeze point, and weights without gradients."""

from dataclasses import replace
from typing import Any

import pytest

from frostline_contract.job import Job, parse_job
from frostline_contract.job.freezing import ElasticSection
from frostline_contract.tile_grid import TileGrid
from frostline_controller.decisions.decide import decide
from frostline_controller.decisions.initial import initial_freeze_reason
from frostline_controller.planner.adapted import with_adapters
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.forecast import forecast
from frostline_controller.planner.gathers import with_gathers
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.choice import ways_of_sharing
from frostline_controller.planner.tensor.traffic import Axes
from tests.unit.controller.freezing_run import entry, inputs_of
from tests.unit.controller.planner_cases import inputs, members, unit

FALLING = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
VIT = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 256, "patch_size": 4}


def job_with(**model: Any) -> Job:
    return parse_job({
        "model": {"family": "vit", "config": VIT, **model}, "task": {"kind": "image_classification"},
        "data": {"source": "digits"}, "training": {"steps": 100},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"requested": 0}, "bounds: 0 is outside 3 to 7"),
        ({"elastic": ElasticSection(freeze=False)}, "nothing freezes but the 3 units before the first with adapters"),
    ],
)
def test_no_request_and_no_switch_goes_below_the_first_unit_with_adapters(changes: dict[str, Any], words: str) -> None:
    frozen = replace(inputs_of(entry(1, FALLING, 3), only=()), lowest=3)
    decision = decide(replace(frozen, **changes))
    assert (decision.freeze_point, decision.kind) == (3, "keep")
    assert words in decision.reason


def test_the_event_of_step_1_says_what_freezes_it() -> None:
    adapted = job_with(adapters={"blocks": "last half"})
    assert initial_freeze_reason(adapted, 8, tied=False) == (
        "unit 4 is the first one with adapters: units 0 to 3 are frozen from step 1, of 8 units"
    )
    assert initial_freeze_reason(job_with(), 8, tied=False) == ""


def test_weights_below_adapters_are_held_and_neither_exchanged_nor_updated() -> None:
    whole = unit(parameters=1000)
    adapted = whole.model_copy(update={"still_bytes": 900, "optimizer_bytes": 200})
    model = CostModel(inputs([whole, adapted, whole], 1))
    assert list(model.gradient_bytes) == [0, 1000, 1100, 2100]
    assert list(model.state_bytes) == [0, 3000, 4200, 7200]


def test_a_forecast_begins_at_the_first_adapter_and_knows_how_narrow_they_are() -> None:
    plain, adapted = job_with(), job_with(adapters={"rank": 4, "targets": ["q_proj", "v_proj"], "blocks": "last 2"})
    assert with_adapters(plain, 64, (unit(),) * 8) == (unit(),) * 8
    inputs_now = forecast(adapted).plans[0].inputs
    assert (inputs_now.freeze_point, inputs_now.never_learnt) == (5, 5)
    learning = [one.gradient_bytes for one in inputs_now.units]
    assert learning[:5] == [0] * 5 and learning[5:7] == [2 * 4 * (64 + 64) * 4] * 2
    assert [one.optimizer_bytes for one in inputs_now.units[:7]] == [2 * one for one in learning[:7]]
    assert [one.backward_seconds > 0 for one in inputs_now.units] == [False] * 5 + [True] * 3
    assert forecast(adapted, freeze_point=2).plans[0].inputs.freeze_point == 5
    with pytest.raises(ValueError, match="the model has the blocks 0 to 5"):
        forecast(job_with(adapters={"blocks": "last 7"}))


def test_a_member_of_a_group_has_its_part_of_a_block_with_adapters() -> None:
    """A part of what never learns, and of the adapters of one of their two matrices."""
    adapted = unit(parameters=1100).model_copy(update={"still_bytes": 1000, "optimizer_bytes": 200})
    asked = inputs([unit(), adapted, adapted, unit()], 4, freeze_point=2, tensor_tiles=TileGrid(4))
    _, frozen, learning, _ = in_groups_as_built(asked, Axes(4), at_home=4).units
    assert (learning.still_bytes, learning.gradient_bytes, learning.optimizer_bytes) == (250, round(62.5), 125)
    assert (frozen.still_bytes, frozen.parameter_bytes, frozen.optimizer_bytes) == (1000, 1100, 125)


def test_replicas_gather_and_share_out_what_learns_alone() -> None:
    adapted = unit(parameters=1100).model_copy(update={"still_bytes": 1000, "optimizer_bytes": 200})
    asked = inputs([unit(), adapted, unit()], 2, freeze_point=1, state_ranges=2)
    gathering = replace(asked, placement=asked.placement.model_copy(update={"shard": "use"}))
    one, two = (with_gathers(gathering, 2).units[1], with_gathers(gathering, 4).units[1])
    assert one.working_bytes - adapted.working_bytes == 250 and two.working_bytes - adapted.working_bytes == 225
    shared = CostModel(gathering).shared_bytes
    assert shared[2] - shared[1] == 300, "weights and moments of the adapters"


def test_workers_are_planned_to_share_a_model_with_adapters() -> None:
    job = parse_job(job_with(adapters={"blocks": "last half"}).model_dump() | {
        "training": {"steps": 100, "state_ranges": 2, "tensor_tiles": {"inner": 2}}, "placement": {"workers": 2, "tp_degree": 2},
    })  # fmt: skip
    (plan, *_) = forecast(job).plans
    assert plan.planned.placement.degrees["tp_columns"] == 2
    adapted = unit(parameters=1100).model_copy(update={"still_bytes": 1000})
    ways = list(ways_of_sharing(inputs([unit(), adapted, unit()], members(4, per_node=4))))
    assert any(way.columns > 1 for way in ways) and any(way.shard != "none" for way in ways)
    assert all(way.depth == 1 and not way.rows_split for way in ways), "adapters compute all samples of the whole hidden width"


def test_a_block_between_adapters_is_not_taken_for_one_that_has_settled() -> None:
    one = entry(1, [3.0, 0.0, 2.0, 4.0], 1, unit_parameters=(0, 10, 0, 10, 10, 5))
    assert decide(inputs_of(one, only=(), policy={"alpha": 0.9})).freeze_point == 4
