"""Plasticity: freeze the blocks whose outputs no longer change (Egeria also judges by outputs, against a reference model).

At each interval's end the trainer compares each unit's outputs on the same held-out samples with those one interval earlier. The
change is 1 - CKA, from 0 (the samples' similarities to each other are unchanged) to 1. A block's output depends on all blocks
before it, so its change measures the whole prefix that a boundary behind the block would freeze. The policy compares a change
with the largest one of all blocks, so that the interval's length and the learning rate do not matter: a prefix whose change is a
small share of the largest has settled. A gradient norm measures how steep the loss is, a change of outputs how far the features
still move. The first layers of a pretrained model have large gradients and hardly move; in a model trained from scratch all
layers move alike, and none has settled.
"""

from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.inputs import FreezeInputs, Proposal, blocks_frozen, freeze_point_of, not_finite


def settled_blocks(changes: tuple[float, ...], frozen: int, num_blocks: int, most: float) -> int:
    """Number of blocks from the first one on, the `frozen` ones included, whose outputs changed by at most `most`.

    Args:
        changes: the change of each unit's output, by unit: block b is unit b + 1.
        frozen: number of blocks that are frozen.
        num_blocks: number of blocks of the model.
        most: the largest change of a settled block.
    """
    settled = frozen
    while settled < num_blocks and changes[settled + 1] <= most:
        settled += 1
    return settled


def propose(inputs: FreezeInputs) -> Proposal:
    """The deepest boundary up to which every block has settled; the freeze point in force while the learning rate rises."""
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
        where = f"block {settled}" if settled == frozen + 1 else f"blocks {frozen + 1} to {settled}"
        words.append(f"at {where} by at most {max(changes[frozen + 1 : settled + 1]) / largest:.1%} of that")
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
    """A note where the learning rate is still rising, else empty. During warm-up outputs change little because updates are small
    and not because blocks have settled."""
    if len(statistics) < 2:
        return ""
    earlier, later = statistics[-2:]
    if later.learning_rate <= earlier.learning_rate:
        return ""
    return f"the learning rate still rises, from {earlier.learning_rate:.3g} to {later.learning_rate:.3g}"
