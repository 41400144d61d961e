"""A worker's memory as the planner predicts it from measured units, and as a step takes it, counted storage by storage."""

from dataclasses import replace

import pytest
import torch

from frostline_contract.plan import StateTag
from frostline_contract.shape import ParallelShape
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.memory import LiveBytes
from frostline_trainer.profile import profile_units
from frostline_trainer.step.generation import Generation
from tests.engine_member import Run, train_step
from tests.exact_cases import BATCH, LEAVES, MICRO_BATCH, NEVER, NUM_UNITS, Case, build_case
from tests.hand_made_plans import Layout, lone_plan

CASES = [
    Case("gpt2_untied", freezing=NEVER, steps=2),
    Case("llama", "mixed_bfloat16", freezing=NEVER, steps=2),
    Case("vit", freezing=NEVER, steps=2, activation_checkpointing=True),
    Case("bert_classification", freezing=((1, 4),), steps=2),
]

UNPLANNED = 64 << 10
"""Bytes that nobody plans: inputs, statistics, step counts, rounding up to aligned places; a few kilobytes here."""


def predicted_bytes(case: Case, freeze_point: int) -> float:
    profile = profile_units(build_case(case))
    inputs = PlanInputs(
        units=profile.units, micro_batch_size=MICRO_BATCH, num_microbatches=-(-BATCH // MICRO_BATCH), reduction_leaves=LEAVES,
        freeze_point=freeze_point, members=(MemberInfo("alone"),),
    )  # fmt: skip
    shape = ParallelShape(1, 1)
    return step_cost(CostModel(inputs), (0, NUM_UNITS), (0, LEAVES), shape, "1f1b", [1.0]).peak_bytes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_takes_what_is_planned(case: Case) -> None:
    """Not more than planned, but for what nobody plans; and not less than two thirds of it: moments of
    frozen units are planned, which a run has that froze them after they had learnt, and each part's worst moment at once.
    """
    freeze_point = case.freeze_point_at(1)
    planned = predicted_bytes(case, freeze_point)
    context = build_case(case)
    weights = sum(parameter.nbytes for unit in context.cut.units for parameter in unit.parameters())
    plan = lone_plan(Layout(1, 1).placement(0))
    context.holdings.settle(range(NUM_UNITS), StateTag(lineage=0, step=0, generation=plan.generation))
    with LiveBytes(torch.device("cpu")) as meter:
        generation = Generation(context, plan, 0, lone_groups(), freeze_point, lambda name: None)
        for step in (1, 2):
            train_step(generation, replace(case, freezing=((1, freeze_point),)), step, Run())
    measured = weights + meter.peak
    assert 2 / 3 * planned <= measured <= planned + UNPLANNED


def trained(case: Case, limit: int | None) -> tuple[Run, Generation]:
    """Run three steps of a lone member, with a freeze after the second. limit: placement.worker_memory_bytes."""
    case = replace(case, freezing=((3, 2),))
    context = build_case(case)
    placement = context.job.placement.model_copy(update={"worker_memory_bytes": limit})
    context.job = context.job.model_copy(update={"placement": placement})
    plan, run = lone_plan(Layout(1, 1).placement(0)), Run()
    context.holdings.settle(range(NUM_UNITS), StateTag(lineage=0, step=0, generation=plan.generation))
    generation = Generation(context, plan, 0, lone_groups(), 0, lambda name: None)
    counted = []
    for step in (1, 2, 3):
        train_step(generation, case, step, run)
        counted.append(generation.weighing.tensor_bytes)
    assert counted[0] == 0, "the first step's moments come with its update"
    return run, generation


def test_where_a_limit_is_set_a_cpu_counts_what_a_step_takes_and_computes_the_same_bits() -> None:
    case = CASES[0]
    planned = predicted_bytes(replace(case, freezing=NEVER), 0)
    limited, generation = trained(case, 10**9)
    plain, uncounted = trained(case, None)
    assert limited.losses == plain.losses and limited.gradient_norms == plain.gradient_norms and len(plain.losses) == 3
    assert uncounted.weighing.tensor_bytes == 0
    assert 2 / 3 * planned <= generation.weighing.tensor_bytes <= planned + UNPLANNED
