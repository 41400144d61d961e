"""Messages to buddies, a buddy's memory, and a unit replica's way to the device and back."""

import copy

import pytest
import torch

from frostline_contract.job.training import OptimizerSection
from frostline_contract.plan import Placement, Plan
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.replication.buddies import Home, UnitReplication
from frostline_trainer.replication.replica_updates import ReplicaUpdate, replica_updates_of
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.gradients import UNIT_ALIGNMENT, GradientBuffers
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.unit_state import export_unit
from frostline_trainer.transport.collectives import Group
from tests.exact_cases import NUM_UNITS, Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan, with_buddies

PORTS = [1, 2, 3, 4]


def plan_of(layout: Layout, domains: tuple[int, ...], bounds: tuple[int, ...] | None = None) -> Plan:
    return make_plan(Segment(layout, 1, bounds=bounds, domains=domains), None, PORTS)


def test_a_stages_units_are_one_message_to_their_buddy() -> None:
    plan = plan_of(Layout(4, 1), (0, 1, 2, 3))
    assert replica_updates_of(plan, 0) == [
        ReplicaUpdate(0, (0, 1), 0, 1), ReplicaUpdate(1, (2, 3), 1, 2),
        ReplicaUpdate(2, (4, 5), 2, 3), ReplicaUpdate(3, (6, 7), 3, 0),
    ]  # fmt: skip
    assert replica_updates_of(plan, 3) == [
        ReplicaUpdate(1, (3,), 1, 2),
        ReplicaUpdate(2, (4, 5), 2, 3),
        ReplicaUpdate(3, (6, 7), 3, 0),
    ]
    assert replica_updates_of(plan_of(Layout(4, 1), ()), 0) == []


def test_units_of_a_stage_with_other_buddies_are_other_messages() -> None:
    plan = plan_of(Layout(2, 1), (0, 1), (0, 5, 8))
    mixed = with_buddies(plan, ("w1", "w1", "", "w1", "w1", "w0", "w0", "w0"))
    assert [update.units for update in replica_updates_of(mixed, 0)] == [(0, 1), (3, 4), (5, 6, 7)]


def test_a_units_pieces_have_one_buddy() -> None:
    """An update is of a whole unit; so is the message of its gradient, however its state is cut."""
    plan = make_plan(Segment(Layout(4, 1), 1, domains=(0, 1, 2, 3)), None, PORTS, case=Case("gpt2_tied", state_ranges=3))
    assert replica_updates_of(plan, 0) == replica_updates_of(plan_of(Layout(4, 1), (0, 1, 2, 3)), 0)
    apart = with_buddies(plan, ("w1", "w2", *plan.buddies[2:]))
    with pytest.raises(ValueError, match=r"pieces of unit 0 have buddies \['w1', 'w2'\]"):
        replica_updates_of(apart, 0)


def test_the_first_replica_sends_and_every_stage_is_named() -> None:
    plan = plan_of(Layout(2, 2, 2, "interleaved_1f1b"), (0, 1, 0, 1))
    shape = plan.placement.shape
    for update in replica_updates_of(plan, 0):
        assert shape.dp_rank(update.owner) == 0
        assert set(update.units) <= set(plan.placement.units_of_stage(update.stage))
        assert plan.placement.workers[update.owner] in plan.placement.owners(update.units[0])
        assert {plan.buddies[unit] for unit in update.units} == {plan.placement.workers[update.buddy]}
    assert sorted(unit for update in replica_updates_of(plan, 0) for unit in update.units) == list(range(NUM_UNITS))


def test_a_span_of_units_is_laid_out_as_those_units_alone() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (7, 300, 1, 128)]
    whole = GradientBuffers([(unit, [parameter]) for unit, parameter in enumerate(parameters)], 1, 1)
    for units in ((0,), (1, 2), (2, 3), (0, 1, 2, 3)):
        alone = GradientBuffers([(unit, [parameters[unit]]) for unit in units], 1, 1)
        span = whole.span(units)
        assert (span.stop - span.start, span.start % UNIT_ALIGNMENT) == (alone.length, 0)
        inside = torch.arange(float(whole.length))[span]
        for unit, view in zip(units, alone.views(inside), strict=True):
            assert torch.equal(view, torch.arange(float(whole.length))[whole.unit_slices[unit]])


# ---- memory


@pytest.mark.parametrize("freeze_point", [0, 3])
@pytest.mark.parametrize(("family", "optimizer", "times"), [("gpt2_tied", "adamw", 4), ("vit", "sgd", 3)])
def test_a_buddy_holds_its_replicas_state_and_one_gradient(family: str, optimizer: str, times: int, freeze_point: int) -> None:
    """With AdamW 4 times the weights that learn: weights, two moments, gradient; alignment and step counts on top."""
    context = build_case(Case(family, optimizer=optimizer))
    plan = plan_of(Layout(4, 1), (0, 1, 2, 3))
    replication = UnitReplication(context, plan, 2, Group(None, "alone", 0, 1), freeze_point)
    kept_units = plan.replicas_kept_by("w2")
    assert kept_units == [2, 3]
    for item in replication.incoming:
        item.landing.normal_()
        item.buffers.adopt(item.landing)
    replication.commit(1e-3, 0.5)
    states = [
        tensor
        for kept_unit in kept_units
        for tensor in export_unit(kept_unit, context.cut.units[kept_unit], context.moments).values()
    ]
    held = sum(tensor.nbytes for tensor in states) + sum(item.landing.nbytes for item in replication.incoming)
    weights = sum(p.nbytes for kept_unit in kept_units for p in context.cut.units[kept_unit].parameters())
    learning = sum(
        p.nbytes for kept_unit in kept_units if kept_unit >= freeze_point for p in context.cut.units[kept_unit].parameters()
    )
    count = sum(1 for kept_unit in kept_units for _ in context.cut.units[kept_unit].parameters())
    bound = weights + (times - 1) * learning + len(kept_units) * UNIT_ALIGNMENT * 4 + count * 4
    assert weights + (times - 1) * learning <= held <= bound
    assert not [key for key in context.moments if key[0] not in kept_units], "and nothing of any other unit"


# ---- which parameters of a unit replica learn


@pytest.mark.parametrize("freeze_point", [0, 1, 3, 7])
@pytest.mark.parametrize(("family", "untied"), [("gpt2_tied", False), ("gpt2_tied", True), ("vit", False)])
def test_owner_and_buddy_agree_on_what_learns(family: str, untied: bool, freeze_point: int) -> None:
    owner, buddy = (build_case(Case(family, untie_on_freeze=untied)) for _ in range(2))
    alone = make_plan(Segment(Layout(1, 1), 1), None, PORTS)
    Generation(owner, alone, 0, lone_groups(), freeze_point, lambda name: None)
    keeping = with_buddies(alone.model_copy(update={"placement": two_workers(alone.placement)}), ("w1",) * NUM_UNITS)
    UnitReplication(buddy, keeping, 1, Group(None, "alone", 0, 1), freeze_point)
    for unit in range(NUM_UNITS):
        flags = [[p.requires_grad for p in context.cut.units[unit].parameters()] for context in (owner, buddy)]
        assert flags[0] == flags[1] and any(flags[0]) == (unit >= freeze_point)
    tied = owner.cut.tied_parameters()
    assert (tied is None) == (untied or family == "vit")
    assert tied is None or tied[1].requires_grad == (freeze_point == 0), "a tied matrix stops in the head too"


def two_workers(placement: Placement) -> Placement:
    """Return the placement with w1 as a member without units, which is only a buddy."""
    return placement.model_copy(update={"workers": ("w0", "w1")})


# ---- to the device and back


@pytest.mark.parametrize("section", [OptimizerSection(), OptimizerSection(name="sgd")], ids=lambda section: section.name)
def test_a_unit_replica_comes_back_from_the_device_into_its_own_memory(section: OptimizerSection) -> None:
    """Tests the way itself; without another device the copies lie in host memory too."""
    context = build_case(Case("vit"))
    plain, module = context.cut.units[2], copy.deepcopy(context.cut.units[2])
    buffers = {id(m): GradientBuffers([(2, list(m.parameters()))], 1, 1) for m in (plain, module)}
    moments: dict[int, Moments] = {id(plain): {}, id(module): {}}
    optimizers = {id(m): UnitOptimizer(section, [(2, m)], moments[id(m)]) for m in (plain, module)}
    places: list[dict[str, int]] = []
    at_home = {name: p.data_ptr() for name, p in module.named_parameters()}
    for step in range(3):
        flat = torch.randn(buffers[id(plain)].length, generator=torch.Generator().manual_seed(step))
        for m in (plain, module):
            buffers[id(m)].adopt(flat.clone())
        optimizers[id(plain)].step(1e-2)
        home = Home([2], module, moments[id(module)], torch.device("cpu"))
        assert all(p.data_ptr() != at_home[name] for name, p in module.named_parameters())
        optimizers[id(module)].step(1e-2)
        home.bring_back()
        state = export_unit(2, module, moments[id(module)])
        expected = export_unit(2, plain, moments[id(plain)])
        assert state.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in state.items())
        places.append({key: tensor.data_ptr() for key, tensor in state.items()})
        assert at_home == {name: p.data_ptr() for name, p in module.named_parameters()}
    assert places[1] == places[2], "its host memory stays its own"
