"""Freeze points that the job lists as shares: {0.1: 0.5, 0.4: 0.67} freezes half of the blocks at a tenth of the run, and so on.

It is `manual` for a model and a run length that are not known yet, with shares in place of units and decision numbers.
"""

import math

from frostline_controller.decisions.inputs import ROUNDING, FreezeInputs, Proposal, freeze_point_of


def propose(inputs: FreezeInputs) -> Proposal:
    """The newest stair that is due at the decision's first step; never below what is frozen."""
    total, done = inputs.calendar.total_steps, inputs.effective_step - 1
    due = [share for share in inputs.freeze.policy.stairs if share * total <= done + ROUNDING]
    if not due:
        return Proposal(inputs.current, f"stairs: none is due by {done / total:.1%} of the run")
    at, of_blocks = max(due), inputs.freeze.policy.stairs[max(due)]
    blocks = min(inputs.num_blocks, math.floor(of_blocks * inputs.num_blocks + ROUNDING))
    text = f"stairs: {of_blocks:.0%} of {inputs.num_blocks} blocks from {at:.0%} of the run on = {blocks}"
    return Proposal(max(inputs.current, freeze_point_of(blocks)), text)


def check_stairs(stairs: dict[float, float]) -> None:
    """Raise ValueError where the policy has no stair, or one outside the run or the model."""
    if not stairs:
        raise ValueError("freeze.policy.stairs is empty; give shares of the blocks by shares of the run, e.g. {0.1: 0.5}")
    for at, of_blocks in stairs.items():
        if not (0.0 <= at < 1.0 and 0.0 <= of_blocks <= 1.0):
            raise ValueError(
                f"freeze.policy.stairs has {of_blocks:g} at {at:g}; both are shares, of the run "
                "from 0 to below 1, of the blocks from 0 to 1"
            )
