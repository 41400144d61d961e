"""A worker's plans: the announcements that it accepts, the plans that a promise ends for good, and those it may vote for."""

import pytest

from frostline_contract.plan import GenerationId, Plan
from frostline_trainer.generations.plan_states import FORMED, REFUSED, PlanState
from frostline_trainer.generations.plan_table import PlanTable
from tests.unit.trainer.test_plan_transitions import FIRST, OURS, continuing, entering, form, formed, gave_away, in_state, plan

# ---- announcements


def test_an_older_generation_is_refused_by_counter_and_by_incarnation() -> None:
    table = PlanTable("a")
    assert table.receive(plan(2, 5))
    assert not table.receive(plan(2, 4))
    assert not table.receive(plan(1, 9))
    assert set(table.rows) == {5}
    assert table.newest == GenerationId(incarnation=2, counter=5)


def test_a_plan_heard_twice_counts_once_and_a_newer_one_is_taken() -> None:
    table = PlanTable("a")
    assert table.receive(plan(1, 1))
    assert not table.receive(plan(1, 1, reason="again"))
    assert table.plan(1).reason == ""
    assert table.receive(plan(2, 2))
    assert set(table.rows) == {1, 2}


@pytest.mark.parametrize("state", OURS, ids=lambda state: state.name)
def test_a_plan_that_comes_again_is_answered_again_where_there_is_an_answer(state: PlanState) -> None:
    table = in_state(state)
    table.take_unanswered()
    assert not table.receive(continuing(1))
    assert [row.state for row in table.take_unanswered()] == ([state] if state in FORMED | REFUSED else [])


def test_a_plan_that_was_taken_back_and_comes_again_is_not_answered_as_ready() -> None:
    """A successor that does not know of the withdrawal would wait for a vote that nobody casts."""
    table = in_state(PlanState.WITHDRAWN)
    table.take_unanswered()
    table.receive(continuing(1))
    assert [row.reason for row in table.take_unanswered()] == ["withdrawn by the controller"]
    assert not table.withdraw(1), "known already"
    assert len(table.take_unanswered()) == 1, "and asked for once more"


def test_a_plan_without_this_worker_raises_the_newest_and_is_not_prepared() -> None:
    table = PlanTable("stranger")
    assert table.receive(plan(3, 1))
    assert table.state(GenerationId(incarnation=3, counter=1)) is PlanState.OTHERS
    assert table.start_forming() == [] and table.due() is None
    assert not table.receive(plan(3, 1)) and table.take_unanswered() == []
    assert table.newest == GenerationId(incarnation=3, counter=1)


def test_a_leaver_prepares_the_plan_that_it_gives_state_to() -> None:
    table = PlanTable("leaver")
    assert table.receive(plan(1, 1, start="survivors", leavers=("leaver",)))
    assert form(table) and formed(table) and entering(table)
    assert gave_away(table) and table.running is None


def test_a_long_run_keeps_what_is_alive_and_what_is_told_in_reports() -> None:
    table = PlanTable("a")
    for counter in range(1, 200, 2):
        table.receive(plan(1, counter))
        table.start_forming()
        generation = GenerationId(incarnation=1, counter=counter)
        table.formed(generation)
        table.entering(generation)
        table.entered(generation, as_member=True)
        table.receive(plan(1, counter + 1, placement=plan(1, 1).placement.model_copy(update={"workers": ("b", "c")})))
    assert {row.state for row in table.rows.values()} == {PlanState.CURRENT, PlanState.OTHERS}
    assert len(table.rows) <= 3


# ---- a report is a promise (docs/protocols.md 4.1)


@pytest.mark.parametrize("state", OURS, ids=lambda state: state.name)
def test_a_promise_ends_a_plan_in_any_state_and_keeps_its_fate(state: PlanState) -> None:
    table = in_state(state)
    assert table.promise() == FIRST
    assert table.state(FIRST) is (PlanState.EXPIRED if state is PlanState.EXPIRED else PlanState.OVER)
    assert table.running is None and table.due() is None and table.votable(4, 0) == 0
    assert not entering(table), "neither by announcement, nor by a store, nor by a peer"


def test_a_promise_forgets_plans_and_refuses_them_by_any_path() -> None:
    table = PlanTable("a")
    table.receive(plan(1, 1))
    table.receive(plan(1, 2))
    assert table.promise() == GenerationId(incarnation=1, counter=2)
    assert table.start_forming() == []
    assert not table.receive(plan(1, 2)), "announced again"
    assert table.take_unanswered() == []
    assert not table.receive(plan(1, 1))
    assert table.receive(plan(1, 3))
    assert [one.generation.counter for one in table.start_forming()] == [3]


@pytest.mark.parametrize("named", [False, True])
def test_a_promise_rules_out_a_plan_that_no_ballot_of_this_member_has_named(named: bool) -> None:
    """Its vote would need this member too. A ballot that names the plan may have been the last one missing."""
    table = PlanTable("a")
    table.receive(plan(1, 1))
    form(table)
    formed(table)
    table.entering(FIRST)
    table.entered(FIRST, as_member=True)
    following = continuing(2, base=FIRST)
    table.receive(following)
    table.start_forming()
    table.formed(following.generation)
    table.all_ready(2)
    assert table.votable(4 if named else 2, 0) == (2 if named else 0)
    table.promise()
    assert table.expired == (set() if named else {following.generation})
    assert not table.switched(following.generation)


def test_the_fate_of_a_plan_is_forgotten_when_a_later_one_is_entered() -> None:
    """Each failure may leave an expired plan, and a plan is as large as the world."""
    table = in_state(PlanState.EXPIRED)
    answer = plan(1, 2)
    table.receive(answer)
    table.start_forming()
    table.formed(answer.generation)
    table.entering(answer.generation)
    assert table.expired == {FIRST}
    table.entered(answer.generation, as_member=True)
    assert table.expired == set() and set(table.rows) == {2}


def test_a_promise_says_nothing_of_the_plan_that_a_joiner_waits_to_enter() -> None:
    """The joiner votes in no generation yet: the members may switch without it."""
    table = PlanTable("a")
    table.receive(plan(1, 1, placement=plan(1, 1).placement.model_copy(update={"workers": ("b", "c")})))
    table.receive(continuing(2, base=FIRST))
    table.promise()
    assert table.expired == set()


def test_a_promise_covers_the_fence_that_asked_for_it() -> None:
    table = in_state(PlanState.CURRENT)
    table.put_fence(GenerationId(incarnation=2, counter=4), "a member is gone")
    assert reason(table) == "a member is gone"
    assert table.promise() == GenerationId(incarnation=2, counter=4)
    assert reason(table) == "", "answered"
    assert not table.receive(plan(2, 3))
    assert table.receive(plan(2, 5))


@pytest.mark.parametrize("state", [PlanState.ENTERING, PlanState.CURRENT], ids=lambda state: state.name)
def test_a_fence_concerns_what_runs_up_to_it(state: PlanState) -> None:
    for fenced, due in ((1, "over"), (2, "over"), (0, "")):
        table = in_state(state)
        table.put_fence(GenerationId(incarnation=1, counter=fenced), "over")
        assert reason(table) == due, "what runs is newer" if not due else ""


def test_a_fence_concerns_whoever_waits_for_nothing_newer() -> None:
    table = PlanTable("a")
    table.receive(plan(1, 2))
    table.put_fence(GenerationId(incarnation=1, counter=2), "over")
    assert reason(table) == "over", "a spare answers too"
    table.receive(plan(1, 3))
    assert reason(table) == "", "the plan that answers has been heard: an old fence must not undo it"
    table.put_fence(GenerationId(incarnation=1, counter=3), "again")
    assert reason(table) == "again", "each fence is answered"


def test_a_promise_does_not_cover_the_plan_that_came_while_the_report_was_being_made() -> None:
    """A fence that comes after its generation's report is answered again; the plan that the first report brought must live."""
    table = PlanTable("a")
    table.receive(plan(1, 1))
    assert table.promise() == GenerationId(incarnation=1, counter=1), "its own error came first"
    table.put_fence(GenerationId(incarnation=1, counter=1), "a member is gone")
    due = table.due_report()
    assert due is not None
    assert table.receive(plan(1, 2)), "the answer"
    assert table.promise(due.until) == GenerationId(incarnation=1, counter=1)
    assert [one.generation.counter for one in table.start_forming()] == [2]
    assert table.due_report() is None
    assert table.promise(GenerationId(incarnation=1, counter=0)) == GenerationId(incarnation=1, counter=1), "it is kept"


def reason(table: PlanTable) -> str:
    due = table.due_report()
    return due.reason if due is not None else ""


# ---- votes


def ready(*plans: Plan) -> PlanTable:
    table = PlanTable("a")
    for one in plans:
        table.receive(one)
        table.start_forming()
        table.formed(one.generation)
        table.all_ready(one.generation.counter)
    return table


@pytest.mark.parametrize(("step", "decision", "votable"), [(2, 2, 0), (3, 2, 7), (5, 2, 7), (6, 2, 0), (4, 1, 0), (4, 3, 0)])
def test_a_plan_can_be_voted_for_in_its_window_under_its_decision(step: int, decision: int, votable: int) -> None:
    assert ready(continuing(7, decision_number=2)).votable(step, decision) == votable


@pytest.mark.parametrize("state", OURS, ids=lambda state: state.name)
def test_only_what_all_are_ready_for_is_voted_for(state: PlanState) -> None:
    assert in_state(state).votable(4, 0) == (1 if state is PlanState.READY else 0)


def test_the_newest_plan_is_voted_for() -> None:
    assert ready(continuing(7), continuing(9)).votable(4, 0) == 9


def test_a_plan_is_ruled_out_when_it_is_taken_back_or_its_window_is_over_and_expires_when_a_vote_has_passed() -> None:
    table = in_state(PlanState.READY)
    assert table.ruled_out(5) == set()
    assert table.ruled_out(6) == {FIRST}
    table.withdraw(1)
    assert table.ruled_out(4) == {FIRST}
    assert [row.plan.generation for row in table.take_unanswered()] == [FIRST]
    assert table.switched(FIRST), "a vote under way may still switch to it"
    table = in_state(PlanState.WITHDRAWN)
    table.expire(table.ruled_out(4))
    assert table.expired == {FIRST} and table.ruled_out(4) == set() and not table.switched(FIRST)
    assert in_state(PlanState.READY, "continue").ruled_out(6) and not in_state(PlanState.PREPARED, "fresh").ruled_out(6)
