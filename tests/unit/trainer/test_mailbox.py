"""A worker's mailbox: plans only go forward."""

from typing import Any

from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_trainer.control.mailbox import Mailbox


def plan(incarnation: int, counter: int, **changes: Any) -> Plan:
    placement = Placement(pp_degree=2, dp_degree=1, stage_bounds=(0, 2, 4), leaf_bounds=(0, 8), workers=("a", "b"))
    fields = {
        "generation": GenerationId(incarnation=incarnation, counter=counter), "lineage": 0, "start": "fresh", "freeze_point": 0,
        "placement": placement,
    }  # fmt: skip
    return Plan(**(fields | changes))


def test_an_older_generation_is_refused_by_counter_and_by_incarnation() -> None:
    mailbox = Mailbox("a")
    assert mailbox.put_plan(plan(2, 5))
    assert not mailbox.put_plan(plan(2, 4))
    assert not mailbox.put_plan(plan(1, 9))
    assert set(mailbox.plans) == {5}
    assert mailbox.newest == GenerationId(incarnation=2, counter=5)


def test_a_plan_heard_twice_counts_once_and_a_newer_one_is_taken() -> None:
    mailbox = Mailbox("a")
    assert mailbox.put_plan(plan(1, 1))
    assert not mailbox.put_plan(plan(1, 1, reason="again"))
    assert mailbox.put_plan(plan(2, 2))
    assert set(mailbox.plans) == {1, 2}


def test_a_plan_without_this_worker_raises_the_newest_and_is_not_prepared() -> None:
    mailbox = Mailbox("stranger")
    assert not mailbox.put_plan(plan(3, 1))
    assert mailbox.plans == {}
    assert mailbox.newest == GenerationId(incarnation=3, counter=1)


def test_a_leaver_prepares_the_plan_that_it_gives_state_to() -> None:
    mailbox = Mailbox("leaver")
    assert mailbox.put_plan(plan(1, 2, leavers=("leaver",)))
    assert set(mailbox.plans) == {2}


def test_a_promise_forgets_plans_and_refuses_them_by_any_path() -> None:
    mailbox = Mailbox("a")
    mailbox.put_plan(plan(1, 1))
    mailbox.put_plan(plan(1, 2))
    assert mailbox.promise() == GenerationId(incarnation=1, counter=2)
    assert mailbox.plans == {}
    assert not mailbox.put_plan(plan(1, 2)), "announced again"
    assert mailbox.take_repeated() == []
    assert not mailbox.put_plan(plan(1, 1))
    assert mailbox.put_plan(plan(1, 3))
    assert set(mailbox.plans) == {3}


def test_a_promise_covers_the_fence_that_asked_for_it() -> None:
    mailbox = Mailbox("a")
    mailbox.put_plan(plan(1, 1))
    mailbox.put_fence(GenerationId(incarnation=2, counter=4), "a member is gone")
    assert reason(mailbox, GenerationId(incarnation=1, counter=1)) == "a member is gone"
    assert mailbox.promise() == GenerationId(incarnation=2, counter=4)
    assert reason(mailbox, None) == "", "answered"
    assert not mailbox.put_plan(plan(2, 3))
    assert mailbox.put_plan(plan(2, 5))


def test_a_fence_concerns_what_runs_up_to_it_and_whoever_waits_for_nothing_newer() -> None:
    mailbox = Mailbox("a")
    mailbox.put_plan(plan(1, 2))
    mailbox.put_fence(GenerationId(incarnation=1, counter=2), "over")
    assert reason(mailbox, GenerationId(incarnation=1, counter=1)) == "over"
    assert reason(mailbox, GenerationId(incarnation=1, counter=2)) == "over"
    assert reason(mailbox, GenerationId(incarnation=1, counter=3)) == "", "what runs is newer"
    assert reason(mailbox, None) == "over", "a spare answers too"
    mailbox.put_plan(plan(1, 3))
    assert reason(mailbox, None) == "", "the plan that answers has been heard: an old fence must not undo it"
    mailbox.put_fence(GenerationId(incarnation=1, counter=3), "again")
    assert reason(mailbox, None) == "again", "each fence is answered"


def test_a_promise_does_not_cover_the_plan_that_came_while_the_report_was_being_made() -> None:
    """A fence that comes after its generation's report is answered again; the plan that the first report brought must live."""
    mailbox = Mailbox("a")
    mailbox.put_plan(plan(1, 1))
    assert mailbox.promise() == GenerationId(incarnation=1, counter=1), "its own error came first"
    mailbox.put_fence(GenerationId(incarnation=1, counter=1), "a member is gone")
    due = mailbox.due_report(None)
    assert due is not None
    assert mailbox.put_plan(plan(1, 2)), "the answer"
    assert mailbox.promise(due.until) == GenerationId(incarnation=1, counter=1)
    assert set(mailbox.plans) == {2}
    assert mailbox.due_report(None) is None
    assert mailbox.promise(GenerationId(incarnation=1, counter=0)) == GenerationId(incarnation=1, counter=1), "it is kept"


def reason(mailbox: Mailbox, running: GenerationId | None) -> str:
    due = mailbox.due_report(running)
    return due.reason if due is not None else ""


def test_a_plan_is_ruled_out_when_it_is_taken_back_or_its_window_is_over_and_dead_when_a_vote_has_passed() -> None:
    mailbox = Mailbox("a")
    window = {"start": "continue", "switch_from": 3, "switch_until": 5}
    mailbox.put_plan(plan(1, 2, **window))
    generation = GenerationId(incarnation=1, counter=2)
    assert mailbox.ruled_out(5) == set()
    assert mailbox.ruled_out(6) == {generation}
    mailbox.withdraw(2)
    assert mailbox.ruled_out(4) == {generation}
    assert [one.generation for one in mailbox.take_withdrawn()] == [generation]
    assert set(mailbox.plans) == {2}, "a vote under way may still switch to it"
    mailbox.bury({generation})
    assert (mailbox.plans, mailbox.dead, mailbox.take_buried()) == ({}, {generation}, {generation})
    assert mailbox.take_withdrawn() == [] and mailbox.take_buried() == set()
