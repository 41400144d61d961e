"""Plasticity: freeze the blocks whose outputs no longer move (Egeria judges by outputs against a reference model likewise).

At each interval's end the trainer compares each unit's outputs on the same held-out samples with those of the interval before:
1 - CKA, 0 where the samples lie to each other as they did, up to 1. What a block puts out depends on all blocks before it, so the
change at a block is what a boundary there would hold still. It is judged as a share of the largest one, whatever the interval's
length and the learning rate: a prefix in which little of the model's movement takes place has settled. A gradient norm says how
steep the loss is, this how far the features still go: a pretrained model's first layers have large gradients and hardly move;
from scratch all layers move alike, and nothing has settled.
"""

from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.inputs import FreezeInputs, Proposal, blocks_frozen, freeze_point_of, not_finite


def settled_blocks(changes: tuple[float, ...], frozen: int, num_blocks: int, most: float) -> int:
    """Blocks from the front on whose outputs changed by at most `most`, `frozen` ones counted. changes: by unit."""
    settled = frozen
    while settled < num_blocks and changes[settled + 1] <= most:
        settled += 1
    return settled


def propose(inputs: FreezeInputs) -> Proposal:
    """The deepest boundary up to which every block has settled; what is frozen while the learning rate still rises."""
    newest, share = inputs.newest, inputs.freeze.policy.settled_share
    unusable = not_finite(newest) or _not_comparable(inputs)
    if unusable:
        return Proposal(inputs.current, f"plasticity cannot be judged: {unusable}")
    if rising := _rising_rate(inputs.statistics):
        return Proposal(inputs.current, f"plasticity: {rising}")
    changes, frozen = newest.unit_output_changes, blocks_frozen(inputs.current)
    largest = max(changes[1:-1])
    settled = settled_blocks(changes, frozen, inputs.num_blocks, share * largest)
    words = [f"outputs move most at block {changes.index(largest, 1)}, by {largest:.3g} (1 - CKA, against the interval before)"]
    if settled > frozen:
        words.append(
            f"at blocks {frozen + 1} to {settled} by at most {max(changes[frozen + 1 : settled + 1]) / largest:.1%} of that"
        )
    if settled < inputs.num_blocks:
        words.append(f"at block {settled + 1} by {changes[settled + 1] / largest:.1%}, and {share:.0%} is settled")
    return Proposal(max(inputs.current, freeze_point_of(settled)), f"plasticity: {'; '.join(words)}: {settled} blocks")


def _not_comparable(inputs: FreezeInputs) -> str:
    changes = inputs.newest.unit_output_changes
    found = len(changes)
    if found == inputs.num_units:
        return "" if any(changes[1:-1]) else "no block's outputs have moved"
    if found == 0 and inputs.newest.number == 1:
        return "interval 1 has no interval before it"
    return (
        f"interval {inputs.newest.number} holds {found} output changes for {inputs.num_units} units; it needs "
        "freeze.probe_samples of 2 or more and as many guard samples"
    )


def _rising_rate(statistics: tuple[IntervalStatistics, ...]) -> str:
    """While the rate warms up outputs stand still because nothing pushes them, not because they have settled."""
    if len(statistics) < 2:
        return ""
    earlier, later = statistics[-2:]
    if later.learning_rate <= earlier.learning_rate:
        return ""
    return f"the learning rate still rises, from {earlier.learning_rate:.3g} to {later.learning_rate:.3g}"
