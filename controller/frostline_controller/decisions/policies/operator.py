"""A freeze point that an operator asks for by command, decided once instead of the job's own policy."""

from frostline_controller.decisions.inputs import FreezeInputs, Proposal

NAME = "operator"


def propose(inputs: FreezeInputs) -> Proposal:
    """The requested freeze point."""
    assert inputs.requested is not None, "the operator's policy needs a request"
    return Proposal(inputs.requested, f"operator: freeze point {inputs.requested} was asked for by command")
