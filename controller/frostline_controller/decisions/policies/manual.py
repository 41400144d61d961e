"""A person's freeze points, by decision number: {3: 2, 6: 4} is freeze point 2 from decision 3 on and 4 from decision 6 on."""

from frostline_controller.decisions.inputs import FreezeInputs, Proposal
from frostline_controller.decisions.policies import operator
from frostline_controller.decisions.surviving import timeline


def propose(inputs: FreezeInputs) -> Proposal:
    """The newest point that is due, lower than what is frozen where the job says so; before the first, what is frozen.

    A command given after it came due outlives it, until the next point.
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
