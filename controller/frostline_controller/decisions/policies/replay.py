"""Replay: the policy that follows another run's decisions, from the surviving lineage of that run's plans.jsonl."""

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
