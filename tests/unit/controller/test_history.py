"""Which decisions bind after rollbacks and restores (docs/protocols.md 4.7, 6.5)."""

import pytest

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.lineage import LineageStart
from frostline_contract.plan import Decision
from frostline_controller.decisions.surviving import (
    History,
    in_force,
    next_number,
    surviving_decisions,
    without_pending_rollbacks,
)

CALENDAR = DecisionCalendar(interval_steps=8, lag_steps=3, total_steps=64)
FREEZE = Decision(number=1, interval=1, effective_step=11, freeze_point=2, kind="freeze")
KEPT = [Decision(number=k, interval=k, effective_step=8 * k + 3, freeze_point=2) for k in (2, 3, 4)]
BACK = Decision(number=5, interval=5, effective_step=43, freeze_point=0, lineage=1, kind="rollback", rollback_to_step=10)
OPENED = LineageStart(lineage=1, starts_at_step=10, kind="rollback")
LATE = BACK.model_copy(update={"void": True})


def timeline(*lineages: LineageStart) -> list[Decision]:
    return surviving_decisions([FREEZE, *KEPT, BACK], lineages, CALENDAR)


def test_a_rollback_stands_where_the_freeze_stood_that_it_takes_back() -> None:
    kept = timeline(OPENED)
    assert [(decision.kind, decision.number, decision.effective_step) for decision in kept] == [("rollback", 1, 11)]
    assert in_force(kept, 11).freeze_point == 0
    assert next_number(kept) == 2


@pytest.mark.parametrize("step", [10, 15])
def test_a_restore_at_or_after_the_step_gone_back_to_keeps_the_rollback(step: int) -> None:
    """Otherwise the freeze's interval would be decided again for ever, under a key that is taken."""
    kept = timeline(OPENED, LineageStart(lineage=2, starts_at_step=step, kind="restore"))
    assert [(decision.kind, decision.number) for decision in kept] == [("rollback", 1)]
    assert next_number(kept) == 2


def test_a_restore_to_before_it_undoes_the_rollback_too() -> None:
    kept = timeline(OPENED, LineageStart(lineage=2, starts_at_step=4, kind="restore"))
    assert kept == []
    assert next_number(kept) == 1


def test_a_rollback_that_came_too_late_keeps_its_place_and_changes_nothing() -> None:
    """Otherwise its interval would be decided again and become void again, for ever."""
    kept = surviving_decisions([FREEZE, *KEPT, LATE], (), CALENDAR)
    assert [(decision.number, decision.void) for decision in kept] == [(1, False), (2, False), (3, False), (4, False), (5, True)]
    assert next_number(kept) == 6
    assert in_force(kept, 43).freeze_point == 2


@pytest.mark.parametrize(("step", "following"), [(41, 5), (42, 6), (50, 6)])
def test_a_restore_to_before_the_vote_that_gave_a_rollback_up_decides_its_interval_again(step: int, following: int) -> None:
    restore = LineageStart(lineage=2, starts_at_step=step, kind="restore")
    assert next_number(surviving_decisions([FREEZE, *KEPT, LATE], (restore,), CALENDAR)) == following


def test_a_restore_takes_back_a_rollback_that_its_state_has_not_been_through() -> None:
    decisions, lineages = without_pending_rollbacks((FREEZE, *KEPT, BACK), (OPENED,), reached=0, step=42)
    assert (decisions, lineages) == ((FREEZE, *KEPT), ()), "it is decided again"
    passed, _ = without_pending_rollbacks((FREEZE, *KEPT, BACK), (OPENED,), reached=0, step=43)
    assert passed == (FREEZE, *KEPT, LATE), "the state has passed its step without it: the workers had given it up"
    through, kept = without_pending_rollbacks((FREEZE, *KEPT, BACK), (OPENED,), reached=1, step=12)
    assert (through, kept) == ((FREEZE, *KEPT, BACK), (OPENED,))


FIRST = LineageStart(lineage=0, starts_at_step=0)
RESTORED = LineageStart(lineage=2, starts_at_step=20, kind="restore")


@pytest.mark.parametrize(
    ("reached", "started", "kept"),
    [(1, 1, (FIRST, OPENED)), (2, 1, (FIRST, OPENED, RESTORED)), (1, 2, (FIRST, OPENED, RESTORED)), (0, 0, (FIRST, OPENED))],
)
def test_a_restore_whose_plan_never_ran_leaves_no_lineage(reached: int, started: int, kept: tuple[LineageStart, ...]) -> None:
    found = History((FREEZE, BACK), (FIRST, OPENED, RESTORED)).without_unstarted(reached, started)
    assert found == History((FREEZE, BACK), kept), "a rollback stays: it is a decision, which may be pending"


def test_a_history_until_a_lineage_has_nothing_of_later_ones() -> None:
    history = History((FREEZE, *KEPT, BACK), (FIRST, OPENED, RESTORED))
    assert history.until(0) == History((FREEZE, *KEPT), (FIRST,))
    assert history.until(1) == History((FREEZE, *KEPT, BACK), (FIRST, OPENED))
    assert history.until(2) == history
