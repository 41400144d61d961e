"""Fixed schedules: the freeze point as a function of progress alone, whatever the gradients say.

closed: ceil(L * (1 - (1 - alpha)^e)) blocks after e intervals, as in PipeTransformer's released code (with L = 12).
freezeout_linear: block i (from 0) freezes at the share t0 + (1 - t0) * i / L of the run (FreezeOut, t0 = 0.8).
freezeout_cubed: block i freezes at the cube of that share. linear: block i freezes at the share (i + 1) / L.
"""

import math

from frostline_controller.decisions.inputs import ROUNDING, FreezeInputs, Proposal, freeze_point_of, whole_blocks


def closed_form(num_blocks: int, alpha: float, intervals: int) -> int:
    """Blocks frozen after `intervals` intervals."""
    return whole_blocks(num_blocks * (1.0 - (1.0 - alpha) ** intervals))


def freezeout(num_blocks: int, t0: float, progress: float, cubed: bool) -> int:
    """Number of blocks whose freezing time has come.

    Args:
        num_blocks: number of blocks of the model.
        t0: freezing time of the first block, as a share of the run, before it is cubed.
        progress: the share of the run that is done, 0.0 to 1.0.
        cubed: whether freezing times are cubed.
    """
    times = [t0 + (1.0 - t0) * block / num_blocks for block in range(num_blocks)]
    return sum(1 for time in times if (time**3 if cubed else time) <= progress + ROUNDING)


def linear(num_blocks: int, progress: float) -> int:
    """Blocks whose whole share of the run has passed."""
    return min(num_blocks, math.floor(num_blocks * progress + ROUNDING))


def propose(inputs: FreezeInputs) -> Proposal:
    """The schedule's freeze point at the end of the newest interval; never below what is frozen."""
    policy, newest, blocks = inputs.freeze.policy, inputs.newest, inputs.num_blocks
    progress = newest.last_step / inputs.calendar.total_steps
    if policy.form == "closed":
        wanted = closed_form(blocks, policy.alpha, newest.number)
        text = f"ceil({blocks} x (1 - (1 - {policy.alpha:.4g})^{newest.number}))"
    elif policy.form == "linear":
        wanted = linear(blocks, progress)
        text = f"linear at {progress:.1%} of the run"
    else:
        wanted = freezeout(blocks, policy.freezeout_t0, progress, cubed=policy.form == "freezeout_cubed")
        text = f"{policy.form} with t0 {policy.freezeout_t0:.4g} at {progress:.1%} of the run"
    return Proposal(max(inputs.current, freeze_point_of(wanted)), f"schedule {policy.form}: {text} = {wanted} of {blocks} blocks")
