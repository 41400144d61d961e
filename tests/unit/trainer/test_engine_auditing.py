"""An audited step of real members, as threads of the test process (no dropout: they share one generator): who is found wrong."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from frostline_contract.plan import StateTag
from frostline_trainer.families.base import still_names
from frostline_trainer.faults.flaw import Flaw, flip_first
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.replication.audited_step import ComputationDiffers
from frostline_trainer.replication.copies import CopiesDiffer, compare_copies
from frostline_trainer.replication.wrong_bits import WrongBits
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation, StepGradients
from frostline_trainer.transport.collectives import open_store
from tests.exact_cases import Case, build_case
from tests.forming import form_groups
from tests.hand_made_plans import Layout, Segment, make_plan

Found = TypeVar("Found")
CASE = Case("gpt2_tied", freezing=(), dropout=0.0, audit_every=2)
AUDITED, NOT_AUDITED = 2, 1
LAYOUTS = (
    Layout(1, 2),
    Layout(1, 3),
    Layout(2, 2),
    Layout(2, 2, 2, "interleaved_1f1b"),
    Layout(2, 1, 2, "gpipe"),
    Layout(3, 1),
    Layout(1, 1),
)


def computed(
    layout: Layout, step: int, freeze_point: int = 0, wrong: Callable[[list[RunContext]], Any] = lambda contexts: None,
    case: Case = CASE,
) -> list[StepGradients | WrongBits]:  # fmt: skip
    """Return the result of each member's computation of a step. wrong: a change that is made to the members before."""
    return of_members(layout, step, freeze_point, wrong, lambda generation: generation.compute(step), case)


def of_members(
    layout: Layout, step: int, freeze_point: int, wrong: Callable[[list[RunContext]], Any], act: Callable[[Generation], Found],
    case: Case = CASE,
) -> list[Found | WrongBits]:  # fmt: skip
    """Return what each member's act before a step returns or finds. wrong: as of `computed`."""
    size, store = len(layout.numbers), open_store()
    domains = tuple(range(size)) if size > 1 else ()
    plan = make_plan(Segment(layout, 9, freeze_point, domains=domains), None, [store[1]] * size, case=case)
    contexts = [build_case(case) for _ in range(size)]
    wrong(contexts)

    def member(index: int) -> Found | WrongBits:
        worker, context = plan.placement.workers[index], contexts[index]
        context.holdings.settle(plan.needs(worker), StateTag(lineage=0, step=step - 1, generation=plan.generation))
        groups = form_groups(plan, worker) if size > 1 else lone_groups()
        generation = Generation(context, plan, index, groups, freeze_point, lambda name: None)
        try:
            return act(generation)
        except WrongBits as differs:
            return differs
        finally:
            groups.moving.barrier()
            generation.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(member, range(size)))


def broken(index: int, what: str, lasting: bool = False) -> Callable[[list[RunContext]], None]:
    def wrong(contexts: list[RunContext]) -> None:
        contexts[index].plug = Flaw(what, lasting)

    return wrong


@pytest.mark.parametrize("freeze_point", [0, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_members_agree_and_an_audit_changes_nothing(layout: Layout, freeze_point: int) -> None:
    for step, audited in ((AUDITED, True), (NOT_AUDITED, False)):
        found = computed(layout, step, freeze_point)
        assert [isinstance(one, StepGradients) and one.audited for one in found] == [audited] * len(found), found


@pytest.mark.parametrize("what", ["gradient", "activation"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_goes_wrong_once_is_found_by_all_and_its_worker_named(layout: Layout, what: str) -> None:
    culprit = len(layout.numbers) - 1
    found = computed(layout, AUDITED, wrong=broken(culprit, what))
    for one in found:
        assert isinstance(one, ComputationDiffers)
        assert one.workers == (f"w{culprit}",)
        assert one.detail["certain"] == "yes"
        assert one.detail["audited_step"] == str(AUDITED)
    assert len({str(one) for one in found}) == 1, "all tell the same"


@pytest.mark.parametrize("what", ["gradient", "activation"])
def test_of_three_replicas_a_broken_one_is_named(what: str) -> None:
    for culprit in range(3):
        found = computed(Layout(1, 3), AUDITED, wrong=broken(culprit, what, lasting=True))
        assert [isinstance(one, ComputationDiffers) and one.workers for one in found] == [(f"w{culprit}",)] * 3


@pytest.mark.parametrize("layout", [Layout(1, 2), Layout(2, 1)], ids=str)
def test_of_two_that_repeat_themselves_both_are_named_and_it_is_said_to_be_unsure(layout: Layout) -> None:
    found = computed(layout, AUDITED, wrong=broken(0, "gradient", lasting=True))
    for one in found:
        assert isinstance(one, ComputationDiffers)
        assert one.workers == ("w0", "w1")
        assert one.detail["certain"].startswith("no")


def test_a_step_that_is_not_audited_is_not_checked() -> None:
    found = computed(Layout(1, 2), NOT_AUDITED, wrong=broken(0, "gradient"))
    assert all(isinstance(one, StepGradients) for one in found)


def test_other_weights_give_other_bits() -> None:
    """`compare_copies`, which the training loop calls first, finds the owner of wrong weights."""

    def wrong(contexts: list[RunContext]) -> None:
        flip_first(next(contexts[1].cut.units[3].parameters()))

    found = computed(Layout(1, 3), AUDITED, wrong=wrong)
    assert [isinstance(one, ComputationDiffers) and one.workers for one in found] == [("w1",)] * 3


def test_a_buddy_that_has_not_the_whole_stage_says_nothing() -> None:
    plan_units = range(3)

    def wrong(contexts: list[RunContext]) -> None:
        settle = contexts[1].holdings.settle
        contexts[1].holdings.settle = lambda units, tag: settle([u for u in units if u not in plan_units], tag)  # type: ignore[method-assign]
        contexts[0].plug = Flaw("gradient")

    found = computed(Layout(2, 1), AUDITED, wrong=wrong)
    assert all(isinstance(one, StepGradients) for one in found)


@pytest.mark.parametrize(
    ("layout", "named", "holders"),
    [(Layout(1, 3), ("w1",), {}), (Layout(1, 2), (), {"holders": "w0 w1"}), (Layout(2, 1), (), {"holders": "w1 w0"})],
    ids=str,
)
def test_of_copies_that_differ_the_odd_one_is_named_or_all_who_hold_one(
    layout: Layout, named: tuple[str, ...], holders: dict[str, str]
) -> None:
    """With one replica the second copy is the buddy's."""

    def wrong(contexts: list[RunContext]) -> None:
        flip_first(next(contexts[1].cut.units[-1].parameters()))

    found = of_members(layout, AUDITED, 0, wrong, lambda generation: compare_copies(generation, AUDITED, 0))
    for one in found:
        assert isinstance(one, CopiesDiffer)
        assert (one.workers, one.detail) == (named, holders)


@pytest.mark.parametrize("culprit", range(3))
def test_a_wrong_weight_below_adapters_is_found_at_any_replica_that_shares_state_out(culprit: int) -> None:
    """Such weights are no state: no piece has them, and no gather of the owners' weights mends them."""
    case = replace(CASE, adapters="all", state_ranges=3, audit_every=0)

    def wrong(contexts: list[RunContext]) -> None:
        unit = contexts[culprit].cut.units[3]
        flip_first(unit.get_parameter(min(still_names(unit))))

    found = of_members(Layout(1, 3, shard="step"), 1, 0, wrong, lambda generation: compare_copies(generation, 1, 0), case)
    assert [isinstance(one, CopiesDiffer) and one.workers for one in found] == [(f"w{culprit}",)] * 3
