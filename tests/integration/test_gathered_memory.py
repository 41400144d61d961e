"""The memory of replicas that gather weights at each use: what the planner predicts, and less than with whole weights."""

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.shape import deal_leaves
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_trainer.profile import profile_units
from tests.exact_cases import LEAVES, MICRO_BATCH, NEVER, NUM_MICROBATCHES, NUM_UNITS, Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.unit.trainer.test_planner_memory import UNPLANNED
from tests.warm_workers import Call, WarmWorkers

CASES = [
    Case("gpt2_untied", freezing=NEVER, steps=2, state_ranges=4, audit_every=0),
    Case("vit", freezing=((1, 4),), steps=2, state_ranges=4, audit_every=0, activation_checkpointing=True),
]


def planned_bytes(case: Case, layout: Layout) -> float:
    inputs = PlanInputs(
        units=profile_units(build_case(case)).units, micro_batch_size=MICRO_BATCH, num_microbatches=NUM_MICROBATCHES,
        reduction_leaves=LEAVES, freeze_point=case.freeze_point_at(1), members=tuple(map(MemberInfo, ("w0", "w1", "w2", "w3"))),
        state_ranges=case.state_ranges, placement=PlacementSection(workers=4, shard=layout.shard),
    )  # fmt: skip
    leaves = (0, *(high for _, high in deal_leaves(LEAVES, layout.dp_degree)))
    model = CostModel(inputs).of_shape(1, layout.dp_degree)
    return step_cost(model, (0, NUM_UNITS), leaves, layout.shape, "1f1b", [1.0] * layout.dp_degree).peak_bytes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_takes_what_is_planned_and_less_than_with_whole_weights(case: Case, warm_workers: WarmWorkers) -> None:
    counted = {}
    for shard in ("step", "use"):
        layout = Layout(1, 4, shard=shard)
        ports = warm_workers.call([Call("tests.engine_member:store_port", {})] * 4)
        plan = make_plan(Segment(layout, 2), None, ports, case=case).model_dump(mode="json")
        arguments = [{"case": case, "worker_id": f"w{number}", "plan": plan} for number in range(4)]
        counted[shard] = max(warm_workers.call([Call("tests.gathering_member:weighed", one) for one in arguments]))
        planned = planned_bytes(case, layout)
        assert 2 / 3 * planned <= counted[shard] <= planned + UNPLANNED, shard
    assert counted["use"] < counted["step"]
