"""A switch frees before it allocates: memory that the old plan alone needed is freed before the next plan takes its own."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

from frostline_contract.plan import StateTag
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.memory import LiveBytes
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.unit_state import place_unit
from tests.engine_member import Run, train_step
from tests.exact_cases import NUM_UNITS, Case, build_case
from tests.hand_made_plans import Layout, lone_plan
from tests.unit.trainer.test_memory import DEVICE, to_or_without_values

CASE = Case("gpt2_tied", freezing=((3, 2), (5, 4)), steps=6)


@pytest.fixture(autouse=True)
def no_collector():
    """Switch Python's cycle collector off: memory that it alone would free counts as held."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def entered(context: RunContext, step: int) -> Generation:
    plan = lone_plan(Layout(1, 1).placement(0))
    context.holdings.settle(range(NUM_UNITS), StateTag(lineage=0, step=step, generation=plan.generation))
    return Generation(context, plan, 0, lone_groups(), CASE.freeze_point_at(step), lambda name: None)


def trained(generation: Generation, steps: range) -> None:
    for step in steps:
        train_step(generation, CASE, step, Run())


def test_a_switch_holds_no_gradient_memory_twice() -> None:
    """Steps 1 and 2 in one generation, 3 and 4 in the next, switched as a worker does."""
    context = build_case(CASE)
    first = entered(context, 0)
    trained(first, range(1, 3))  # moments are made here
    with LiveBytes(torch.device("cpu")) as alone:
        trained(first, range(3, 5))
    context = build_case(CASE)
    with LiveBytes(torch.device("cpu")) as both:
        first = entered(context, 0)
        trained(first, range(1, 3))
        before = both.peak
        first.give_back()
        given = both.now
        second = entered(context, 2)
        trained(second, range(3, 5))
    gradients = sum(parameter.nbytes for unit in context.cut.units for parameter in unit.parameters())
    moments = 2 * gradients
    assert moments <= given < moments + gradients / 2, "nothing but moments and small change is left"
    assert both.peak == before, "the step that follows takes no more than the one before"
    assert alone.peak <= both.peak


def test_a_freeze_holds_no_gradient_memory_twice() -> None:
    context = build_case(CASE)
    generation = entered(context, 0)
    with LiveBytes(torch.device("cpu")) as meter:
        trained(generation, range(1, 3))
        before = meter.peak
        trained(generation, range(3, 7))
    assert meter.peak == before, "two freezes, each with smaller buffers"


def test_units_that_leave_the_device_go_before_those_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units 4 to 7 were here and 0 to 3 come: at no time are more on the device than the larger half. In order of their numbers
    all eight would be.
    """
    monkeypatch.setattr(nn.Module, "to", to_or_without_values)
    context = replace(build_case(CASE), device=DEVICE)
    plan = lone_plan(Layout(2, 1).placement(0))
    sizes = [sum(parameter.nbytes for parameter in unit.parameters()) for unit in context.cut.units]
    with LiveBytes(DEVICE) as resident:
        for unit in plan.placement.units_of_stage(1):
            place_unit([unit], context.cut.units[unit], context.moments, DEVICE)
        there = resident.now
        context.holdings.settle(range(NUM_UNITS), StateTag(lineage=0, step=0, generation=plan.generation))
        Generation(context, plan, 0, lone_groups(), 0, lambda name: None)
    coming = sum(sizes[unit] for unit in plan.placement.units_of_stage(0))
    boundary = context.hidden_like().nbytes
    assert resident.peak <= max(there, coming) + boundary < there + coming
