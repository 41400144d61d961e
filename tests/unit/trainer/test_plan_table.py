"""A worker's plans: each has one state, goes from one to another as `TRANSITIONS` says, and is ended for good by a promise."""

from collections.abc import Callable
from typing import Any

import pytest

from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_trainer.generations.plan_table import FORMED, REFUSED, TRANSITIONS, PlanState, PlanTable

FIRST = GenerationId(incarnation=1, counter=1)
OURS = [state for state in PlanState if state is not PlanState.OTHERS]


def plan(incarnation: int, counter: int, **changes: Any) -> Plan:
    placement = Placement(pp_degree=2, dp_degree=1, stage_bounds=(0, 2, 4), leaf_bounds=(0, 8), workers=("a", "b"))
    fields = {
        "generation": GenerationId(incarnation=incarnation, counter=counter), "lineage": 0, "start": "fresh", "freeze_point": 0,
        "placement": placement,
    }  # fmt: skip
    return Plan(**(fields | changes))


def continuing(counter: int, **changes: Any) -> Plan:
    return plan(1, counter, **{"start": "continue", "switch_from": 3, "switch_until": 5} | changes)


def in_state(state: PlanState, start: str = "") -> PlanTable:
    """A table whose plan 1.1 has come to `state` by what a worker meets. It continues, where that can come to `state`."""
    table = PlanTable("a")
    start = start or ("fresh" if state is PlanState.FAILED else "continue")
    assert table.receive(plan(1, 1, start=start, switch_from=3, switch_until=5))
    for act in WAYS[state]:
        act(table)
    assert table.state(FIRST) is state
    return table


def form(table: PlanTable) -> bool:
    return [one.generation for one in table.start_forming()] == [FIRST]


def formed(table: PlanTable) -> bool:
    return table.formed(FIRST)


def not_formed(table: PlanTable) -> bool:
    return table.not_formed(FIRST, "no room")


def all_ready(table: PlanTable) -> bool:
    return table.all_ready(1)


def withdraw(table: PlanTable) -> bool:
    return table.withdraw(1)


def switched(table: PlanTable) -> bool:
    return table.switched(FIRST)


def entering(table: PlanTable) -> bool:
    try:
        table.entering(FIRST)
    except RuntimeError:
        return False
    return True


def entered(table: PlanTable) -> bool:
    table.entered(FIRST, as_member=True)
    return table.state(FIRST) is PlanState.CURRENT


def gave_away(table: PlanTable) -> bool:
    table.entered(FIRST, as_member=False)
    return table.state(FIRST) is PlanState.OVER


def expire(table: PlanTable) -> bool:
    table.expire({FIRST})
    return table.expired == {FIRST}


def promise(table: PlanTable) -> bool:
    table.promise(FIRST)
    return table.state(FIRST) is PlanState.OVER


def enter_later(table: PlanTable) -> bool:
    """Another plan is entered meanwhile."""
    table.receive(plan(1, 2))
    table.start_forming()
    table.formed(GenerationId(incarnation=1, counter=2))
    table.entering(GenerationId(incarnation=1, counter=2))
    table.entered(GenerationId(incarnation=1, counter=2), as_member=True)
    return table.state(FIRST) is PlanState.OVER


Act = Callable[[PlanTable], bool]
PREPARE: list[Act] = [form, formed]
WAYS: dict[PlanState, list[Act]] = {
    PlanState.HEARD: [],
    PlanState.FORMING: [form],
    PlanState.PREPARED: PREPARE,
    PlanState.READY: [*PREPARE, all_ready],
    PlanState.WITHDRAWN: [*PREPARE, all_ready, withdraw],
    PlanState.FAILED: [form, not_formed],
    PlanState.SWITCHED: [*PREPARE, all_ready, switched],
    PlanState.ENTERING: [*PREPARE, all_ready, switched, entering],
    PlanState.CURRENT: [*PREPARE, all_ready, switched, entering, entered],
    PlanState.EXPIRED: [expire],
    PlanState.OVER: [promise],
}
LEADS_TO: dict[Act, PlanState] = {
    form: PlanState.FORMING, formed: PlanState.PREPARED, all_ready: PlanState.READY, withdraw: PlanState.WITHDRAWN,
    switched: PlanState.SWITCHED, entering: PlanState.ENTERING, entered: PlanState.CURRENT, expire: PlanState.EXPIRED,
    promise: PlanState.OVER,
}  # fmt: skip


@pytest.mark.parametrize("act", LEADS_TO, ids=lambda act: act.__name__)
@pytest.mark.parametrize("state", [state for state in OURS if state is not PlanState.FAILED], ids=lambda state: state.name)
def test_what_may_follow_a_state_follows_and_everything_else_is_refused(state: PlanState, act: Act) -> None:
    table, wanted = in_state(state), LEADS_TO[act]
    may = wanted in TRANSITIONS[state]
    already = act in (entered, expire, promise) and state is wanted
    assert act(table) == (may or already)
    assert table.state(FIRST) is (wanted if may else state)


def test_every_transition_is_some_acts() -> None:
    """Nothing is allowed that no worker does."""
    told = {(state, LEADS_TO[act]) for state in OURS for act in LEADS_TO} | {(PlanState.FORMING, PlanState.FAILED)}
    assert {(state, after) for state, following in TRANSITIONS.items() for after in following} <= told
    assert not any(TRANSITIONS[state] for state in (PlanState.OTHERS, PlanState.EXPIRED, PlanState.OVER)), "these are ends"


@pytest.mark.parametrize("start", ["fresh", "checkpoint", "survivors"])
def test_what_does_not_continue_waits_for_no_vote(start: str) -> None:
    table = in_state(PlanState.PREPARED, start)
    assert not table.all_ready(1) and not table.withdraw(1), "nobody votes for it, so nobody takes it back"
    due = table.due()
    assert due is not None and due.state is PlanState.PREPARED
    assert entering(table) and entered(table)
    failed = PlanTable("a")
    failed.receive(plan(1, 1, start=start))
    assert form(failed) and not_formed(failed)
    due = failed.due()
    assert due is not None and (due.state, due.reason) == (PlanState.FAILED, "no room")
    assert [(row.state, row.reason) for row in failed.take_unanswered()] == [(PlanState.FAILED, "no room")]
    assert promise(failed) and failed.due() is None


def test_a_plan_that_continues_and_cannot_be_formed_is_only_not_ready() -> None:
    table = PlanTable("a")
    table.receive(continuing(1))
    assert form(table) and not_formed(table)
    assert table.due() is None, "the running generation goes on"
    assert [(row.state, row.reason) for row in table.take_unanswered()] == [(PlanState.WITHDRAWN, "no room")]
    assert table.take_unanswered() == []


def test_groups_that_were_formed_too_late_are_of_no_use() -> None:
    for end in (withdraw, expire, promise):
        table = in_state(PlanState.FORMING)
        end(table)
        state = table.state(FIRST)
        assert not table.formed(FIRST) and table.state(FIRST) is state
    assert not in_state(PlanState.OVER).not_formed(FIRST, "too late"), "nobody waits for an answer"
    assert not PlanTable("a").not_formed(FIRST, "never received")


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


# ---- entering


@pytest.mark.parametrize("state", [state for state in OURS if state is not PlanState.FAILED], ids=lambda state: state.name)
def test_a_plan_that_continues_is_due_when_a_vote_has_switched(state: PlanState) -> None:
    due = in_state(state).due()
    assert (due.state if due is not None else None) == (state if state is PlanState.SWITCHED else None)


def test_any_other_is_due_when_it_is_prepared() -> None:
    for state in (PlanState.HEARD, PlanState.FORMING, PlanState.ENTERING, PlanState.CURRENT, PlanState.OVER):
        table = PlanTable("a")
        table.receive(plan(1, 1))
        for act in [one for one in WAYS[state] if one not in (all_ready, switched)]:
            act(table)
        assert table.state(FIRST) is state and table.due() is None
    assert in_state(PlanState.PREPARED, "fresh").due() is not None


def test_what_runs_is_the_plan_that_is_entered_until_another_one_is() -> None:
    table = in_state(PlanState.CURRENT)
    assert table.running is not None and table.running.generation == FIRST
    following = GenerationId(incarnation=1, counter=2)
    table.receive(continuing(2))
    assert table.running.generation == FIRST
    table.start_forming()
    table.formed(following)
    table.all_ready(2)
    table.switched(following)
    assert table.running.generation == FIRST, "the old generation's groups are still open"
    table.entering(following)
    assert table.running.generation == following and table.state(FIRST) is PlanState.CURRENT
    table.entered(following, as_member=True)
    assert (table.state(FIRST), table.state(following)) == (PlanState.OVER, PlanState.CURRENT)


def test_what_is_older_than_a_plan_that_was_entered_is_over_and_what_is_newer_stays() -> None:
    table = in_state(PlanState.READY)
    later = GenerationId(incarnation=1, counter=3)
    assert enter_later(table)
    table.receive(continuing(3))
    table.entered(GenerationId(incarnation=1, counter=2), as_member=True)
    assert table.state(later) is PlanState.HEARD


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
