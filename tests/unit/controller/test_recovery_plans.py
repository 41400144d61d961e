"""The plan that answers: who keeps copies, who gives state, what a retry costs, when joiners are taken in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision, Placement
from frostline_controller.history import in_force, surviving_decisions, without_pending_rollbacks
from frostline_controller.membership import Worker
from frostline_controller.plan_building import buddies_of, survivors_plan, switching_plan, uncovered_of
from frostline_controller.recovery.budget import RetryBudget
from frostline_controller.recovery.facts import GoOn
from frostline_controller.service.adapting import Joins
from frostline_controller.state.durable import LineageStart
from tests.unit.controller.failures import NUM_UNITS, generation, placement, plan, tag, vote


def store(worker_id: str) -> Worker:
    return Worker(worker_id, f"pod-{worker_id}", "node", 1, "127.0.0.1", 4000, None, 0.0, 0.0)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Placement, dict[str, str]]:
    pp_degree, dp_degree = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (2, 3), (1, 5), (3, 1)]))
    made = placement("ABCDEFGH"[: pp_degree * dp_degree], pp_degree)
    return made, {worker: draw(st.sampled_from("xyz")) for worker in made.workers}


@given(shapes())
def test_a_buddy_is_in_another_domain_and_exists_wherever_there_is_one(drawn: tuple[Placement, dict[str, str]]) -> None:
    made, domains = drawn
    buddies = buddies_of(made, domains)
    assert len(buddies) == NUM_UNITS
    for unit, buddy in enumerate(buddies):
        owners = made.owners(unit)
        at = {domains[owner] for owner in owners}
        elsewhere = [worker for worker in made.workers if domains[worker] not in at]
        if len(at) > 1 or not elsewhere:
            assert buddy == ""
        else:
            assert buddy in elsewhere
    assert set(uncovered_of(made, domains, buddies)) == {
        unit for unit in range(NUM_UNITS) if not buddies[unit] and len({domains[o] for o in made.owners(unit)}) == 1
    }
    for stage in range(made.shape.num_stages):
        assert len({buddies[unit] for unit in made.units_of_stage(stage)}) == 1, "one buddy a stage: one message a step"


@given(shapes())
def test_without_domains_nobody_keeps_anything(drawn: tuple[Placement, dict[str, str]]) -> None:
    made, _ = drawn
    buddies = buddies_of(made, {})
    assert buddies == ("",) * NUM_UNITS
    assert uncovered_of(made, {}, buddies) == tuple(range(NUM_UNITS))


def test_copies_are_spread_and_who_has_one_keeps_it() -> None:
    made = placement("ABCD", 4)
    domains = dict(zip("ABCD", "abcd", strict=True))
    assert buddies_of(made, domains) == ("B", "C", "D", "A")
    held = ({"D"}, {"A"}, {"B"}, {"C"})
    assert buddies_of(made, domains, held) == ("D", "A", "B", "C")


def survivors(holders: tuple[str, ...], workers: str, pp_degree: int = 1, **fields):
    found = GoOn(tag(9, 1), tuple(tuple(units) for units in holders), holders[0][0], vote(9, 1), True)
    made = placement(workers, pp_degree)
    base = plan(1, "ABCD", 2).model_copy(update={"run_epoch": 3})
    domains = {worker: worker for worker in "ABCDE"}
    return survivors_plan(generation(5), base, found, 0, made, store(workers[0]), (1, 2), domains, "why", **fields)


def test_a_survivors_plan_says_where_everything_is() -> None:
    made = survivors(("AB", "AB", "B", "C"), "BCE")
    assert (made.start_tag, made.vote, made.run_epoch, made.base) == (tag(9, 1), vote(9, 1), 3, generation(1))
    assert (made.freeze_point, made.decision_number, made.leavers) == (1, 2, ())
    assert [made.holders_of(unit) for unit in range(4)] == [["B"], ["B"], ["B"], ["C"]]
    assert made.sources == ("B", "B", "B", "C")
    assert made.state_source == "B", "the answer's own is not placed"
    assert made.store_port == 4000


@given(st.lists(st.sets(st.sampled_from("ABCD"), min_size=1), min_size=4, max_size=4), st.sampled_from(["AB", "AE", "E", "CDE"]))
def test_no_state_is_sent_away(holders: list[set[str]], workers: str) -> None:
    """Every unit has a source that takes part, and nobody takes part for nothing."""
    made = survivors(tuple("".join(sorted(units)) for units in holders), workers)
    for unit, units in enumerate(holders):
        assert made.sources[unit] in units & set(made.participants)
        assert set(made.holders_of(unit)) == units & set(made.participants)
    for leaver in made.leavers:
        others = set(made.participants) - {leaver}
        assert any(not units & others for units in holders), f"{leaver} is not needed"
    assert made.state_source in {worker for units in holders for worker in units} & set(made.participants)
    assert len(made.buddies) == NUM_UNITS


def test_a_planned_switch_counts_the_buddies_copies_too() -> None:
    base = plan(1, "ABCD", 4).model_copy(update={"buddies": ("B", "C", "D", "A"), "run_epoch": 2})
    domains = dict(zip("ABCD", "abcd", strict=True))
    made = switching_plan(generation(2), base, 0, placement("ABC", 1), store("A"), (0, 0), (5, 9), domains, "why")
    assert [made.holders_of(unit) for unit in range(4)] == [["A", "B"], ["B", "C"], ["C", "D"], ["A", "D"]]
    assert (made.leavers, made.run_epoch) == (("D",), 2)
    assert (made.buddies, made.uncovered) == (("",) * 4, ()), "each unit has three owners in three domains"


class TestRetryBudget:
    def test_deaths_are_free(self) -> None:
        budget = RetryBudget(limit=2)
        for _ in range(20):
            budget.note(10, 0, of_its_own=False, error="")
        assert budget.exhausted == ""

    def test_the_first_error_is_told(self) -> None:
        budget = RetryBudget(limit=2)
        for number in range(3):
            assert budget.exhausted == ""
            budget.note(10, 0, of_its_own=True, error=f"error {number}")
        assert "2 recoveries in a row without one step beyond step 10; first error: error 0" in budget.exhausted

    def test_a_step_further_starts_anew_and_a_step_done_again_does_not(self) -> None:
        budget = RetryBudget(limit=2)
        for step in (10, 6, 10):
            budget.note(step, 0, of_its_own=True, error=f"at {step}")
        assert "first error: at 10" in budget.exhausted
        budget.note(11, 0, of_its_own=True, error="later")
        assert (budget.exhausted, budget.first_error) == ("", "later")

    def test_a_rollback_starts_anew(self) -> None:
        budget = RetryBudget(limit=1)
        budget.note(40, 0, of_its_own=True, error="before")
        budget.note(33, 1, of_its_own=True, error="after")
        assert (budget.count, budget.exhausted) == (1, "")


class TestJoins:
    def test_a_quiet_moment_is_waited_for(self) -> None:
        joins = Joins(settle_seconds=1.0, pause_seconds=5.0)
        joins.note(10.0)
        assert joins.due_at() == pytest.approx(11.0)
        joins.note(10.5)
        assert joins.due_at() == pytest.approx(11.5)

    def test_a_stream_of_joiners_is_not_waited_for_for_ever(self) -> None:
        joins = Joins(settle_seconds=1.0, pause_seconds=5.0)
        for tenths in range(100, 200, 5):
            joins.note(tenths / 10)
        assert joins.due_at() == pytest.approx(14.0)

    def test_a_pause_lies_between_two(self) -> None:
        joins = Joins(settle_seconds=1.0, pause_seconds=5.0)
        joins.note(10.0)
        joins.tried(11.0)
        joins.note(12.0)
        assert joins.due_at() == pytest.approx(16.0)


def test_a_rollback_that_a_restore_came_before_is_decided_again() -> None:
    calendar = DecisionCalendar(8, 3, 64)
    freeze = Decision(number=1, interval=1, effective_step=11, freeze_point=2, kind="freeze")
    back = Decision(number=2, interval=2, effective_step=19, freeze_point=0, kind="rollback", lineage=1, rollback_to_step=8)
    lineages = (LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=8, kind="rollback"))
    decisions, kept, void = without_pending_rollbacks((freeze, back), lineages, reached=0)
    assert ([d.void for d in decisions], [d.number for d in void]) == ([False, True], [2])
    restored = (*kept, LineageStart(lineage=2, starts_at_step=17, kind="restore"))
    timeline = surviving_decisions(decisions, restored, calendar)
    assert [(d.number, d.freeze_point) for d in timeline] == [(1, 2)], "decision 2 is due again"
    assert in_force(timeline, 18) == freeze
    assert without_pending_rollbacks((freeze, back), lineages, reached=1) == ((freeze, back), lineages, [])


def test_a_leaver_that_later_ones_make_needless_is_left_out() -> None:
    made = survivors(("AB", "B", "C", "AC"), "E")
    assert set(made.leavers) == {"B", "C"}
