"""The number of a text's own tokens, without padding: the cache need not store the padding's rows of a boundary activation.

Texts are padded to one length. If no other token attends to a padding token and the loss reads none of its logits, its gradient
is exactly 0 at every unit, and it adds 0 to every sum (sums begin at +0, and +0 plus -0 is +0). So the padding's rows may hold
any finite numbers, and a cached prefix returns zeros for them, hit or miss (docs/protocols.md 11.7). Before a worker begins, it
checks that this holds on its machine (`padding_check`).
"""

import numpy as np

from frostline_trainer.families.registry import family_named
from frostline_trainer.step.context import RunContext


def own_tokens(context: RunContext) -> np.ndarray | None:
    """How many tokens each training sample has before its padding; None if padding matters, or if no sample is padded.

    A text without any token counts as a whole, since all its padding is attended to.
    """
    whole = context.hidden_shape[0]
    lengths = getattr(context.data.train, "own_tokens", None)
    blind = all(getattr(one, "padding_blind", False) for one in (family_named(context.job.model.family), context.task))
    noisy = context.job.data.augmentation.mode == "pointwise-feature"  # its scale is measured over all rows, padding included
    if lengths is None or not blind or noisy or context.padding_dependence:
        return None
    own = np.where(np.asarray(lengths) > 0, lengths, whole)
    return own if own.min(initial=whole) < whole else None
