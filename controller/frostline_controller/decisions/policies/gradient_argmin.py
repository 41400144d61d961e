"""Eq. (1) of PipeTransformer (ICML 2021): freeze up to the active block with the smallest gradient norm, capped by alpha.

    frozen(T) = min( frozen(T-1) + alpha * (L - frozen(T-1)),  argmin over l in [frozen(T-1), L) of ||g_l(T)|| )

Where the paper leaves a choice, this policy does as follows. L counts transformer blocks. The block that the argmin names is
frozen too (else a smallest norm in the first active block would never freeze anything). The cap stays a real number between
intervals and is rounded up only for the proposal; a `freeze.rails.least_blocks` above 1 raises it to as many blocks, since one
evaluation could never propose them else. The embedding freezes with the first block. The score of a block is the root
mean square over the interval of its gradient's L2 norm; with `normalise_by_parameters` it is divided by the root of the block's
parameter count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.inputs import FreezeInputs, Proposal, blocks_frozen, freeze_point_of, not_finite, whole_blocks


@dataclass(frozen=True)
class Nomination:
    """One evaluation of Eq. (1), in blocks.

    Attributes:
        frozen: the result, a real number of blocks.
        cap: the operand that limits one evaluation's freeze to the fraction `alpha` of the active blocks.
        argmin: the operand of the gradients: the number of blocks up to the one with the lowest score, that block included.
    """

    frozen: float
    cap: float
    argmin: int


def equation_one(frozen: float, scores: Sequence[float], alpha: float, least: int = 1) -> Nomination:
    """Eq. (1): the number of blocks to freeze. Where no active block is left, nothing changes.

    Args:
        frozen: blocks frozen so far, a real number.
        scores: one for each block. Scores of frozen blocks are ignored; of equal scores the first block's counts.
        alpha: the fraction of the active blocks that one evaluation may freeze.
        least: number of blocks that it may freeze in any case, where that is above 1.
    """
    cap = frozen + alpha * (len(scores) - frozen)
    if least > 1:
        cap = max(cap, min(float(len(scores)), frozen + least))
    active = range(whole_blocks(frozen), len(scores))
    if not active:
        return Nomination(frozen, cap, len(scores))
    argmin = min(active, key=lambda block: scores[block]) + 1
    return Nomination(min(cap, float(argmin)), cap, argmin)


def propose(inputs: FreezeInputs) -> Proposal:
    """The result of Eq. (1), applied to all intervals one after the other, so that the real-valued cap need not be stored."""
    policy = inputs.freeze.policy
    unusable = not_finite(inputs.newest)
    if unusable:
        return Proposal(inputs.current, f"Eq. (1) cannot be evaluated: {unusable}")
    rails = inputs.freeze.rails
    least = 1 if "least_move" in rails.off else rails.least_blocks
    frozen = 0.0
    before = 0.0
    nomination = Nomination(0.0, 0.0, 0)
    for entry in inputs.statistics:
        frozen = _in_force(frozen, blocks_frozen(entry.freeze_point))
        if not_finite(entry):
            continue
        before = frozen
        nomination = equation_one(frozen, scores_of(entry, policy.normalise_by_parameters), policy.alpha, least)
        frozen = nomination.frozen
    blocks = whole_blocks(nomination.frozen)
    wanted = max(inputs.current, freeze_point_of(blocks))
    return Proposal(wanted, _reason(inputs, before, nomination, blocks))


def scores_of(entry: IntervalStatistics, normalise: bool) -> tuple[float, ...]:
    """The score of each block, without embedding and head. A block without adapters in a model with adapters learns nothing, so
    its score excludes it."""
    blocks = zip(entry.unit_gradient_norms[1:-1], entry.unit_parameters[1:-1], strict=True)
    return tuple(math.inf if count == 0 else norm / math.sqrt(count) if normalise else norm for norm, count in blocks)


def _in_force(frozen: float, blocks: int) -> float:
    """The real-valued number of frozen blocks where it agrees with the freeze point in force, else the latter's whole number.

    They disagree where the proposal was clipped, the decision was void, or a command was given.
    """
    return frozen if whole_blocks(frozen) == blocks else float(blocks)


def _reason(inputs: FreezeInputs, before: float, nomination: Nomination, blocks: int) -> str:
    first, last = whole_blocks(before) + 1, inputs.num_blocks
    if first > last:
        return f"Eq. (1): all {last} blocks are frozen"
    alpha = inputs.freeze.policy.alpha
    capped = before + alpha * (last - before)
    raised = f", raised to {nomination.cap:.4g} by freeze.rails.least_blocks" if nomination.cap > capped else ""
    scores = scores_of(inputs.newest, inputs.freeze.policy.normalise_by_parameters)
    text = (
        f"Eq. (1): of the active blocks {first} to {last}, block {nomination.argmin} has the smallest gradient norm "
        f"({scores[nomination.argmin - 1]:.4g}); cap {before:.4g} + {alpha:.4g} x "
        f"{last - before:.4g} = {capped:.4g}{raised}: {blocks} blocks"
    )
    if nomination.argmin < whole_blocks(nomination.cap):
        return f"{text}; the gradient decided"
    if nomination.argmin == last:
        return f"{text}; the argmin names the last block, so the cap alone decided"
    return f"{text}; the cap alone decided"
