"""Head and loss in chunks of each sample's tokens, so that logits over a large vocabulary are never all in memory.

A chunk is computed, scored, and recomputed in the backward. The losses of chunks are added in order, so the chunk size is part
of the numerics.
"""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

Inputs = dict[str, torch.Tensor]
Score = Callable[[torch.Tensor, Inputs], torch.Tensor]
"""(logits, inputs) -> a loss, or one row of evaluation figures for each sample; both are sums over tokens."""


def cut_tokens(inputs: Inputs, start: int, stop: int, tokens: int) -> Inputs:
    """The inputs of the tokens [start, stop) of a sequence: those with a dimension of `tokens` are cut, others stay."""
    has_tokens = {name for name, value in inputs.items() if value.ndim > 1 and value.shape[1] == tokens}
    return {name: value[:, start:stop] if name in has_tokens else value for name, value in inputs.items()}


def sum_over_chunks(head: Callable[[torch.Tensor, Inputs, int], torch.Tensor], score: Score, hidden: torch.Tensor,
                    inputs: Inputs, chunk_tokens: int) -> torch.Tensor:  # fmt: skip
    """The sum of `score` over chunks of tokens, in their order.

    Args:
        head: (hidden, inputs, number of the chunk) -> logits; a token's logits depend on that token alone.
        hidden: (samples, tokens, width). inputs: those with a token dimension are cut alike.
        chunk_tokens: tokens of each sample in a chunk; the last chunk has what is left.
    """

    def part(piece: torch.Tensor, cut: Inputs, number: int) -> torch.Tensor:
        return score(head(piece, cut, number), cut)

    tokens, total = hidden.shape[1], None
    for number, start in enumerate(range(0, tokens, chunk_tokens)):
        place = slice(start, start + chunk_tokens)
        # A clone is aligned, wherever the chunk lay (step/alignment.py).
        piece = hidden[:, place].clone(memory_format=torch.contiguous_format)
        cut = cut_tokens(inputs, start, start + chunk_tokens, tokens)
        if torch.is_grad_enabled():
            one = checkpoint(part, piece, cut, number, use_reentrant=False, preserve_rng_state=False)
        else:
            one = part(piece, cut, number)
        total = one if total is None else total + one
    assert total is not None
    return total
