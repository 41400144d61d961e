"""Which tokens of a text's boundary activation are its own, so that the rest need not be stored.

Texts are padded to one length. What a padding token holds reaches nothing that counts where no other token attends to it and the
loss reads none of its logits: its gradient is then exactly 0 at every unit, and what it adds to any sum is a 0 (sums begin at +0,
and +0 and -0 make +0). So the padding's rows may hold any finite numbers, and a cached prefix gives zeros, hit or miss
(docs/protocols.md 11.7). A worker looks whether that is so on its machine before it begins (`padding_check`).
"""

import numpy as np

from frostline_trainer.families.registry import family_named
from frostline_trainer.step.context import RunContext


def own_tokens(context: RunContext) -> np.ndarray | None:
    """How many tokens each training sample has before its padding; None where all count, or none is padded.

    A text of no token at all is attended to as a whole, padding and all.
    """
    whole = context.hidden_shape[0]
    lengths = getattr(context.data.train, "own_tokens", None)
    blind = all(getattr(one, "padding_blind", False) for one in (family_named(context.job.model.family), context.task))
    noisy = context.job.data.augmentation.mode == "pointwise-feature"  # its scale is that of all rows together
    if lengths is None or not blind or noisy or context.padding_dependence:
        return None
    own = np.where(np.asarray(lengths) > 0, lengths, whole)
    return own if own.min(initial=whole) < whole else None
