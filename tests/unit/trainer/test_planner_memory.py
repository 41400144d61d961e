"""A worker's memory as the planner predicts it from measured units, and as a step takes it, counted storage by storage."""

from dataclasses import replace

import pytest
import torch

from frostline_contract.plan import StateTag
from frostline_contract.shape import ParallelShape
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_controller.planner.leaves import deal_evenly, gradient_buffers
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.memory import LiveBytes
from frostline_trainer.profile import profile_units
from frostline_trainer.step.exchange import reduce_gradients
from frostline_trainer.step.generation import Generation
from frostline_trainer.transport.collectives import Group
from tests.engine_member import Run, train_step
from tests.exact_cases import LEAVES, MICRO_BATCH, NEVER, NUM_MICROBATCHES, NUM_UNITS, Case, build_case
from tests.hand_made_plans import Layout, lone_plan
from tests.unit.controller.planner_cases import inputs as made
from tests.unit.trainer.group_threads import in_group
from tests.unit.trainer.test_engine_exchange import filled

CASES = [
    Case("gpt2_untied", freezing=NEVER, steps=2),
    Case("llama", "mixed_bfloat16", freezing=NEVER, steps=2),
    Case("vit", freezing=NEVER, steps=2, activation_checkpointing=True),
    Case("bert_classification", freezing=((1, 4),), steps=2),
    Case("vit", freezing=NEVER, steps=2, audit_every=0),
]

GRADIENT = 128 * 840
"""Elements of a gradient that every number of replicas up to eight divides into whole chunks."""
UNPLANNED = 64 << 10
"""Bytes that nobody plans: inputs, statistics, step counts, rounding up to aligned places; a few kilobytes here."""


def predicted_bytes(case: Case, freeze_point: int) -> float:
    profile = profile_units(build_case(case))
    inputs = PlanInputs(
        units=profile.units, micro_batch_size=MICRO_BATCH, num_microbatches=NUM_MICROBATCHES, reduction_leaves=LEAVES,
        freeze_point=freeze_point, members=(MemberInfo("alone"),), has_audits=case.audit_every > 0,
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


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("micro_batches_a_leaf", [1, 2])
@pytest.mark.parametrize(
    ("replicas", "leaves"), [(1, 1), (1, 4), (1, 8), (2, 2), (2, 8), (3, 4), (3, 8), (4, 4), (4, 8), (5, 8), (7, 8)]
)
def test_gradients_take_the_buffers_that_are_planned(replicas: int, leaves: int, micro_batches_a_leaf: int, exact: bool) -> None:
    """The sums of the leaves and the exchange's workspace, in whole gradients, as the fullest replica has allocated them."""
    bounds, number = deal_evenly(leaves, replicas), leaves * micro_batches_a_leaf
    values = list(torch.ones(number, GRADIENT))

    def member(column: Group) -> int:
        buffers = filled(values, *bounds[column.index : column.index + 2], leaves, replicas, exact)
        reduce_gradients(buffers, column, bounds, leaves, exact)
        return buffers.held_bytes

    inputs = made(1, replicas, num_microbatches=number, reduction_leaves=leaves, exact_numerics=exact)
    assert max(in_group(replicas, member)) == gradient_buffers(inputs, bounds) * GRADIENT * values[0].element_size()


def test_an_audit_takes_another_buffer() -> None:
    """A lone worker computes the micro-batch again itself."""

    def buffers(workers: int, has_audits: bool) -> float:
        return gradient_buffers(made(2, workers, has_audits=has_audits), (0, 8))

    assert buffers(2, has_audits=True) == buffers(2, has_audits=False) + 1
    assert buffers(1, has_audits=True) == buffers(1, has_audits=False) + 1
