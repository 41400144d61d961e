"""Another run's freeze history, decision by decision: the surviving lineage of its plans.jsonl."""

from frostline_controller.decisions.inputs import FreezeInputs, Proposal
from frostline_controller.decisions.surviving import timeline


def propose(inputs: FreezeInputs) -> Proposal:
    """The freeze point that was in force in the other run after the decision of this number; void ones changed nothing there.

    A rolled-back freeze never happened in the surviving lineage, and a rollback's own freeze point stands in its place.
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
