"""The steps whose votes may switch to a plan that is made now, and what is in force there."""

from typing import NamedTuple

from frostline_controller.run.facts import RunFacts


class Window(NamedTuple):
    """Freeze point and number of the decision that a plan names; first and last step whose vote may switch to it."""

    freeze_point: int
    decision_number: int
    first: int
    until: int


def open_window(facts: RunFacts, not_before: int = 0) -> Window:
    """The window of a plan that is made now, which may be empty.

    The plan names the newest decision; votes may switch from the step from which that is in force, until the vote before the one
    that adopts the next decision, and never at the run's last step.

    Args:
        facts: of the run, whose identity is known.
        not_before: a step that the switch has to wait for.
    """
    assert facts.calendar is not None
    timeline = [decision for decision in facts.surviving() if not decision.void]
    newest = timeline[-1] if timeline else None
    first = max(facts.step + 1, newest.effective_step if newest else 1, not_before)
    following = facts.calendar.due_after(first)
    until = facts.total_steps - 1
    if facts.calendar.effective_step(following) <= facts.total_steps:
        until = min(until, facts.calendar.effective_step(following) - 2)
    return Window(facts.freeze_point_under(newest), newest.number if newest else 0, first, until)
