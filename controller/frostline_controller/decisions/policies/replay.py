"""Replay: the policy that follows another run's decisions, from the surviving lineage of that run's plans.jsonl."""

from collections.abc import Iterable

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision
from frostline_controller.decisions.inputs import FreezeInputs, Proposal
from frostline_controller.decisions.surviving import timeline


def propose(inputs: FreezeInputs) -> Proposal:
    """The freeze point in force in the other run after its decision of this number; void decisions changed nothing there.

    In the surviving lineage a freeze that was rolled back never happened; the rollback's own freeze point stands in its place.
    """
    number = inputs.newest.number
    applied = {
        place: decision
        for place, decision in timeline(inputs.replayed, inputs.calendar).items()
        if place <= number and not decision.void
    }
    if not applied:
        return Proposal(inputs.current, f"replay: the run has no decision up to {number}")
    newest = max(applied)
    decision = applied[newest]
    return Proposal(decision.freeze_point, f"replay of decision {newest} ({decision.policy}: {decision.reason})")


def check_calendar(replayed: Iterable[Decision], calendar: DecisionCalendar) -> None:
    """Raise ValueError where a decision took effect at another step than the one of its number here."""
    for one in replayed:
        if one.void or one.kind == "rollback":  # it changed nothing there, or stands at the step that it went back to
            continue
        if (step := calendar.effective_step(one.number)) != one.effective_step:
            raise ValueError(
                f"decision {one.number} of the run that is followed took effect at step {one.effective_step}; here it would "
                f"at step {step}, with freeze.interval_steps {calendar.interval_steps} (null: an epoch) and decisions.lag_steps "
                f"{calendar.lag_steps}: give the run both as that run had them"
            )
