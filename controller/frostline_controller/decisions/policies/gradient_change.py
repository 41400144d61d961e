"""AutoFreeze's percentile test on the relative change of gradient norms between two intervals.

    eta_l = |D_l(T-1) - D_l(T)| / D_l(T-1),   boundary = first active block with eta_l >= the N-th percentile of the active ones

D is the interval's root mean square gradient norm. The blocks before the boundary freeze; never the last block. A percentile is a
rank, so it proposes a boundary even where no block has settled. That is why the rails test the absolute change too.
"""

import math
from collections.abc import Sequence

from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.inputs import FreezeInputs, Proposal, blocks_frozen, freeze_point_of, not_finite


def relative_changes(earlier: IntervalStatistics, later: IntervalStatistics, active: range) -> list[float]:
    """eta of each active block (unit indices); infinite for a block that had no gradient before and has one now."""

    def eta(unit: int) -> float:
        before, after = earlier.unit_gradient_norms[unit], later.unit_gradient_norms[unit]
        if before == 0.0:
            return 0.0 if after == 0.0 else math.inf
        return abs(before - after) / before

    return [eta(unit) for unit in active]


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of `values` (not empty), linear between the two nearest ranks."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    if place == low or ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def propose(inputs: FreezeInputs) -> Proposal:
    """The percentile boundary; the freeze point in force until there are two usable intervals."""
    if len(inputs.statistics) < 2:
        return Proposal(inputs.current, "gradient change: needs two intervals, there is one")
    earlier, later = inputs.statistics[-2:]
    unusable = not_finite(earlier) or not_finite(later)
    if unusable:
        return Proposal(inputs.current, f"gradient change cannot be evaluated: {unusable}")
    frozen = blocks_frozen(inputs.current)
    active = range(frozen + 1, inputs.num_blocks + 1)
    if len(active) < 2:
        return Proposal(inputs.current, f"gradient change: {len(active)} active block left, the last one never freezes")
    etas = relative_changes(earlier, later, active)
    percent = inputs.freeze.policy.percentile
    threshold = percentile(etas, percent)
    boundary = next(unit for unit, eta in zip(active, etas, strict=True) if eta >= threshold)
    wanted = min(boundary - 1, inputs.num_blocks - 1)
    text = (
        f"gradient change: block {boundary} is the first with change {etas[boundary - active.start]:.4g} >= {threshold:.4g}, "
        f"percentile {percent:g} of blocks {active.start} to {active[-1]} (a percentile always nominates): {wanted} blocks"
    )
    return Proposal(max(inputs.current, freeze_point_of(wanted)), text)
