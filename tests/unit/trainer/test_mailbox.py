"""A worker's mailbox: plans only go forward."""

from typing import Any

from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_trainer.mailbox import Mailbox


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
