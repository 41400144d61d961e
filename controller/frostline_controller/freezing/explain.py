"""One line about a decision, for events, logs and the terminal."""

from frostline_contract.plan import Decision
from frostline_controller.freezing.inputs import blocks_frozen

EVENT_KINDS = {"freeze": "freeze", "unfreeze": "unfreeze", "rollback": "guard"}
"""Kind of the run event that each kind of decision makes; a `keep` makes none."""


def event_kind(decision: Decision) -> str | None:
    """The run event's kind, or None where nothing changes."""
    if decision.void:
        return "decision_void"
    return EVENT_KINDS.get(decision.kind)


def explain(decision: Decision) -> str:
    """What a decision does, from which step on, and why."""
    name = f"decision {decision.number}"
    prefix = describe_prefix(decision.freeze_point)
    if decision.void:
        late = f"it came too late for step {decision.effective_step} and changed nothing"
        return f"{name} is void: {late} (it was a {decision.kind} with {prefix})"
    if decision.kind == "rollback":
        what = f"goes back to step {decision.rollback_to_step} in lineage {decision.lineage} with {prefix}"
    elif decision.kind == "keep":
        what = f"keeps {prefix}"
    else:
        what = f"{decision.kind}s from step {decision.effective_step} on: {prefix}"
    return f"{name} {what} [{decision.policy}] {decision.reason}"


def describe_prefix(freeze_point: int) -> str:
    """The frozen prefix in words."""
    blocks = blocks_frozen(freeze_point)
    if freeze_point == 0:
        return "nothing frozen"
    if blocks == 0:
        return "the embedding frozen"
    which = "block 1" if blocks == 1 else f"blocks 1 to {blocks}"
    return f"the embedding and {which} frozen (freeze point {freeze_point})"
