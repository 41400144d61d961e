"""Freeze points that the job lists by decision number: {3: 2, 6: 4} means freeze point 2 from decision 3 on, 4 from 6 on."""

from frostline_controller.decisions.inputs import FreezeInputs, Proposal
from frostline_controller.decisions.policies import operator
from frostline_controller.decisions.surviving import timeline


def propose(inputs: FreezeInputs) -> Proposal:
    """The newest freeze point that is due, which may be lower than the one in force; before the first, the one in force.

    A command given after a freeze point has come due stays in force until the next one.
    """
    due = [number for number in inputs.freeze.policy.points if number <= inputs.newest.number]
    if not due:
        return Proposal(inputs.current, f"manual: no freeze point is given up to decision {inputs.newest.number}")
    point = inputs.freeze.policy.points[max(due)]
    for place, decision in timeline(inputs.decisions, inputs.calendar).items():
        commanded = decision.policy == operator.NAME and decision.kind != "rollback" and not decision.void
        if commanded and max(due) <= place < inputs.newest.number:
            return Proposal(inputs.current, f"manual: the operator's decision {place} overrides freeze point {point}")
    return Proposal(point, f"manual: freeze point {point} from decision {max(due)} on")
