"""The decision on the newest interval: guard, then policy, then rails (docs/design.md 6: score -> decision -> actuation).

`decide` is a pure function: a policy keeps no state but computes it anew each time from all statistics of the surviving lineage.
So a restarted controller, or a successor, makes the same decision from the same records.
"""

from dataclasses import replace

from frostline_contract.lineage import lineage_above
from frostline_contract.plan import Decision
from frostline_controller.decisions.guard import breach
from frostline_controller.decisions.initial import about_the_tie, check_initial_units
from frostline_controller.decisions.inputs import FreezeInputs, known_at
from frostline_controller.decisions.policies.stairs import check_stairs
from frostline_controller.decisions.rails import apply_rails, rails_off
from frostline_controller.decisions.registry import OPERATOR, find_policy
from frostline_controller.decisions.surviving import Change


def decide(inputs: FreezeInputs) -> Decision:
    """The decision on the newest interval of `inputs.statistics`.

    The decision has the interval's number. A rollback names the lineage that it opens, in which the undone intervals and their
    numbers come again. This decision itself and later ones in `inputs` are ignored. A rollback takes precedence over everything
    else, also over an operator's request: the caller keeps the request until a decision that is no rollback has applied it.

    Raises:
        ValueError: a policy or rail does not exist, a freeze point is outside the model, guard readings do not pair, or the
            interval ends too late for its decision to take effect.
    """
    check_freezing(inputs)
    inputs = replace(inputs, decisions=known_at(inputs.deciding_lineage, inputs.newest.number, inputs.decisions))
    number = inputs.newest.number
    if inputs.effective_step > inputs.calendar.total_steps:
        raise ValueError(
            f"decision {number} would take effect at step {inputs.effective_step}; the run ends at {inputs.calendar.total_steps}"
        )
    if not inputs.elastic.freeze:
        but = f" but the {inputs.lowest} units before the first with adapters" if inputs.lowest else ""
        return _decision(inputs, inputs.lowest, f"elastic.freeze is false: nothing freezes{but}", inputs.freeze.policy.name)
    policy = find_policy(inputs.freeze.policy.name)
    condemned, finding = None, ""
    if "guard" not in rails_off(inputs.freeze.rails) | policy.exempt:
        condemned, finding = breach(inputs)
    if condemned:
        return _rollback(inputs, condemned, finding, policy.name)
    if inputs.requested is not None:
        policy = OPERATOR
    proposal = policy.propose(inputs)
    clip = apply_rails(inputs, proposal.freeze_point, policy)
    notes = [proposal.reason, clip.note, f"guard: {finding}" if finding else "", _about_the_tie(inputs, clip.freeze_point)]
    return _decision(inputs, clip.freeze_point, "; ".join(filter(None, notes)), policy.name)


def check_freezing(inputs: FreezeInputs) -> None:
    """Raise ValueError for mistakes in the job's freeze section; worth calling before the run starts."""
    rails_off(inputs.freeze.rails)
    check_initial_units(inputs.freeze.initial_units, inputs.num_units)
    policy = inputs.freeze.policy
    find_policy(policy.name)
    if policy.name == "stairs":
        check_stairs(policy.stairs)
    deepest = inputs.num_units - 1
    asked = policy.points.items() if policy.name == "manual" else ()
    for number, point in asked:
        if number < 1 or not 0 <= point <= deepest:
            raise ValueError(
                f"freeze.policy.points has {point} at decision {number}; decisions count from 1, and a model of "
                f"{inputs.num_units} units allows freeze points 0 to {deepest} (the head never freezes)"
            )


def _decision(inputs: FreezeInputs, freeze_point: int, reason: str, policy: str) -> Decision:
    """A decision to keep, freeze or unfreeze, in the run's lineage."""
    kind = "keep"
    if freeze_point != inputs.current:
        kind = "freeze" if freeze_point > inputs.current else "unfreeze"
    return Decision(
        number=inputs.newest.number,
        interval=inputs.newest.number,
        effective_step=inputs.effective_step,
        freeze_point=freeze_point,
        lineage=inputs.deciding_lineage,
        decided_in=inputs.deciding_lineage,
        kind=kind,
        reason=reason,
        policy=policy,
    )


def _rollback(inputs: FreezeInputs, condemned: Change, finding: str, policy: str) -> Decision:
    """A rollback in a new lineage: to the checkpoint that each freeze writes at the last step before it takes effect."""
    step = condemned.effective_step - 1
    taken_back = f"freeze {condemned.number} ({condemned.before} -> {condemned.after}) is taken back to step {step}"
    return Decision(
        number=inputs.newest.number,
        interval=inputs.newest.number,
        effective_step=inputs.effective_step,
        freeze_point=condemned.before,
        lineage=lineage_above(inputs.highest_lineage, inputs.deciding_lineage, *(one.lineage for one in inputs.decisions)),
        decided_in=inputs.deciding_lineage,
        kind="rollback",
        reason=f"guard: {finding}; {taken_back}, freeze point {condemned.after} and deeper are quarantined",
        policy=policy,
        rollback_to_step=step,
    )


def _about_the_tie(inputs: FreezeInputs, freeze_point: int) -> str:
    """A note for the reason where this decision is the first to freeze an embedding whose matrix the head shares.

    See docs/protocols.md 1.7.
    """
    if not inputs.tied or inputs.current > 0 or freeze_point == 0:
        return ""
    return about_the_tie(inputs.untie_on_freeze)
