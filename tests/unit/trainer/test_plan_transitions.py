"""The life of a worker's plan: each state, each transition, and everything that is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_trainer.generations.plan_states import TRANSITIONS, PlanState
from frostline_trainer.generations.plan_table import PlanTable

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
    """Return a table whose plan 1.1 reached `state` by a worker's acts; a continuing plan, if such a plan can reach `state`."""
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
    """Enter another plan meanwhile."""
    table.receive(plan(1, 2))
    table.start_forming()
    table.formed(GenerationId(incarnation=1, counter=2))
    table.entering(GenerationId(incarnation=1, counter=2))
    table.entered(GenerationId(incarnation=1, counter=2), as_member=True)
    return table.state(FIRST) is PlanState.OVER


Act = Callable[[PlanTable], bool]
PREPARE: list[Act] = [form, formed]
WAYS: dict[PlanState, list[Act]] = {
    PlanState.RECEIVED: [],
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
    """The table allows no transition that no worker makes."""
    reported = {(state, LEADS_TO[act]) for state in OURS for act in LEADS_TO} | {(PlanState.FORMING, PlanState.FAILED)}
    assert {(state, after) for state, following in TRANSITIONS.items() for after in following} <= reported
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


# ---- entering


@pytest.mark.parametrize("state", [state for state in OURS if state is not PlanState.FAILED], ids=lambda state: state.name)
def test_a_plan_that_continues_is_due_when_a_vote_has_switched(state: PlanState) -> None:
    due = in_state(state).due()
    assert (due.state if due is not None else None) == (state if state is PlanState.SWITCHED else None)


def test_any_other_is_due_when_it_is_prepared() -> None:
    for state in (PlanState.RECEIVED, PlanState.FORMING, PlanState.ENTERING, PlanState.CURRENT, PlanState.OVER):
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
    assert table.state(later) is PlanState.RECEIVED


# ---- whatever happens in whatever order

PLANS = st.integers(1, 4)
COMMON = ["receive", "continue", "form", "formed", "all_ready", "switched", "entering", "entered"]
RARE = ["withdraw", "expire", "fence", "promise"]
HAPPENINGS = st.lists(st.tuples(st.sampled_from([*COMMON * 3, *RARE]), PLANS), min_size=20, max_size=80)


@given(HAPPENINGS)
def test_no_order_of_events_leaves_the_allowed_transitions(happenings: list[tuple[str, int]]) -> None:
    table = PlanTable("a")
    for name, counter in happenings:
        generation = GenerationId(incarnation=1, counter=counter)
        before = {number: row.state for number, row in table.rows.items()}
        promised, newest = table.promised, table.newest
        happen(table, name, generation)
        for number, row in table.rows.items():
            was = before.get(number)
            new = was is None and row.state is PlanState.RECEIVED
            # A leaver enters the plan and has ended it at once: no state in between is seen.
            assert new or row.state is was or row.state in TRANSITIONS[was], (name, counter, was, row.state)
        live = [row for row in table.rows.values() if row.state not in (PlanState.EXPIRED, PlanState.OVER)]
        assert all(table.promised < row.plan.generation for row in live), "a promise is kept"
        assert promised <= table.promised and newest <= table.newest and table.promised <= table.newest
        for state in (PlanState.ENTERING, PlanState.CURRENT):
            assert [row.state for row in live].count(state) <= 1


def happen(table: PlanTable, name: str, generation: GenerationId) -> None:
    """Apply one event by its caller's own calls; events that the caller's thread cannot cause in this state are left out."""
    counter, state = generation.counter, table.state(generation)
    if name in ("receive", "continue"):
        table.receive(continuing(counter) if name == "continue" else plan(1, counter))
    elif name == "form":
        table.start_forming()
    elif name == "fence":
        table.put_fence(generation, "over")
    elif name == "promise":
        if (due := table.due_report()) is not None:
            table.promise(due.until)
    elif counter not in table.rows:
        return
    elif name == "formed":
        table.formed(generation)
    elif name == "all_ready":
        table.all_ready(counter)
    elif name == "withdraw":
        table.withdraw(counter)
    elif name == "switched":
        table.switched(generation)
    elif name == "expire":
        table.expire(table.ruled_out(counter + 3))
    elif name == "entering":
        # The training thread enters what is due, and nothing while it enters.
        row = table.due()
        if (
            row is not None
            and row.state is not PlanState.FAILED
            and not any(one.state is PlanState.ENTERING for one in table.rows.values())
        ):
            table.entering(row.plan.generation)
    elif name == "entered" and state is PlanState.ENTERING:
        table.entered(generation, as_member=True)
