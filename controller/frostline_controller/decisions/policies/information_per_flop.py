"""L-SAR: freeze where the information that a step still gathers, per FLOP that it costs, is greatest.

    maximise over n:  sum over i > n of tr F_i  *  UC / (UC - sum over i <= n of BF_i)

tr F_i is a unit's Fisher trace, approximated by its mean squared gradient norm; UC is the cost of a step with nothing frozen;
BF_i is the backward cost that freezing unit i saves, twice its forward FLOPs. Costs are counted FLOPs, never measured times,
since a policy's inputs must not depend on a clock or on the placement (docs/protocols.md 6.3).
"""

from collections.abc import Sequence

from frostline_controller.decisions.inputs import FreezeInputs, Proposal, blocks_frozen, freeze_point_of, not_finite

FORWARD_AND_BACKWARD = 3
"""A step's FLOPs as a multiple of the forward's: the backward costs two forwards."""
BACKWARD = 2


def information_per_flop(norms: Sequence[float], forward_flops: Sequence[int], freeze_point: int) -> float:
    """The maximised quantity for one freeze point; norms and forward_flops one a unit."""
    total = FORWARD_AND_BACKWARD * sum(forward_flops)
    saved = BACKWARD * sum(forward_flops[:freeze_point])
    return sum(norm * norm for norm in norms[freeze_point:]) * total / (total - saved)


def propose(inputs: FreezeInputs) -> Proposal:
    """The best freeze point at or above the one in force (frozen units report no gradient, so lower ones cannot be scored)."""
    newest = inputs.newest
    unusable = not_finite(newest)
    if unusable:
        return Proposal(inputs.current, f"information per FLOP cannot be evaluated: {unusable}")
    flops = newest.unit_forward_flops
    if len(flops) != inputs.num_units or sum(flops) <= 0:
        return Proposal(inputs.current, f"information per FLOP: {len(flops)} FLOP counts for {inputs.num_units} units")
    deeper = [freeze_point_of(blocks) for blocks in range(blocks_frozen(inputs.current) + 1, inputs.num_blocks)]
    values = {point: information_per_flop(newest.unit_gradient_norms, flops, point) for point in [inputs.current, *deeper]}
    best = max(values, key=lambda point: (values[point], -point))
    now = values[inputs.current]
    if best == inputs.current:
        return Proposal(best, f"information per FLOP is greatest with the {blocks_frozen(best)} blocks that are frozen")
    gain = values[best] / now - 1.0
    return Proposal(best, f"information per FLOP rises by {gain:.1%} with {blocks_frozen(best)} blocks frozen")
