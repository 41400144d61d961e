"""A freeze policy: one more block whenever the training loss has stopped falling fast.

A policy is a pure function: it reads statistics and returns a proposal with its reason. It sees no clock and no placement, so the
same run freezes the same way everywhere. The controller adds rails, guard, numbering and durability.
"""

from frostline_controller.decisions.inputs import FreezeInputs, Proposal, blocks_frozen, freeze_point_of

SLOW = 0.1
"""A loss that falls by less than this share from one interval to the next counts as slow."""


def propose(inputs: FreezeInputs) -> Proposal:
    """Propose one more frozen block if the loss of the newest interval is close to that of the previous one."""
    if len(inputs.statistics) < 2:
        return Proposal(inputs.current, "loss_plateau: one interval is no trend")
    before, now = (entry.loss_mean for entry in inputs.statistics[-2:])
    fall = (before - now) / before
    if fall >= SLOW:
        return Proposal(inputs.current, f"loss_plateau: the loss still falls by {fall:.1%} an interval")
    wanted = freeze_point_of(min(blocks_frozen(inputs.current) + 1, inputs.num_blocks))
    return Proposal(wanted, f"loss_plateau: the loss fell by {fall:.1%} only, so one more block freezes")
