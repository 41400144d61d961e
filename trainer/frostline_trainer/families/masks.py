"""Builds attention masks from the 2-D mask of valid tokens, in the form of transformers' own models."""

import torch
from torch import Tensor

from frostline_trainer.families.cells import Cell


def bidirectional_mask(x: Tensor, valid: Tensor | None, attention: str) -> Tensor | None:
    """The mask of an encoder block: every token attends to all valid tokens.

    Args:
        x: hidden states (samples, tokens, width); it may hold some of the samples alone.
        valid: (samples, tokens), 1 = valid; None: all are.
        attention: "sdpa" gets a boolean mask, "eager" an additive one of x's type.

    Returns:
        (samples, 1, tokens, tokens); None: nothing is masked.
    """
    if valid is None or _all_valid(valid):
        return None
    tokens = x.shape[1]
    return _in_form(valid.to(x.device, torch.bool)[:, None, None, :].expand(-1, 1, tokens, -1), x, attention)


def causal_mask(x: Tensor, valid: Tensor | None, attention: str, cell: Cell | None = None) -> Tensor | None:
    """The mask of a decoder block: a token attends to itself and to the valid tokens before it.

    Args:
        x, valid, attention: as in `bidirectional_mask`.
        cell: the tokens that `x` holds; None: all.

    Returns:
        (samples of `valid`, or 1 without it, 1, tokens, tokens); with `cell` (..., 1, tokens of the cell, tokens up to its end),
        never None. None (sdpa only): plain causality, which the kernel implements itself.
    """
    if cell is not None:
        return _mask_of_cell(x, valid, attention, cell)
    nothing_hidden = valid is None or _all_valid(valid)
    if nothing_hidden and attention != "eager":
        return None
    tokens = x.shape[1]
    allowed = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()[None, None]
    if valid is not None:
        allowed = allowed & valid.to(x.device, torch.bool)[:, None, None, :]
    return _in_form(allowed, x, attention)


def _mask_of_cell(x: Tensor, valid: Tensor | None, attention: str, cell: Cell) -> Tensor:
    count = x.shape[1]
    if valid is None and attention != "eager" and x.device.type != "cpu":
        from torch.nn.attention.bias import causal_lower_right  # imported here because it takes seconds

        return causal_lower_right(count, cell.stop)  # a mask object, since fast kernels take no mask tensor
    allowed = torch.ones(count, cell.stop, dtype=torch.bool, device=x.device).tril(cell.start)[None, None]
    if valid is not None:
        allowed = allowed & valid[:, : cell.stop].to(x.device, torch.bool)[:, None, None, :]
    return _in_form(allowed, x, attention)


def _all_valid(valid: Tensor) -> bool:
    """Whether the mask hides nothing; checked on the CPU only, False elsewhere and in a compiled unit.

    On a CPU, kernels give the same output with and without a mask. On other devices they need not, and a sample's bits must not
    depend on whether another sample is padded; the check would also make the host wait for the device. A compiled unit is one
    graph, which cannot look at values.
    """
    return valid.device.type == "cpu" and not torch.compiler.is_compiling() and bool(valid.bool().all())


def _in_form(allowed: Tensor, x: Tensor, attention: str) -> Tensor:
    if attention != "eager":
        return allowed
    # float32's least number also for float64: some layers compute the softmax in float32, where float64's least number would
    # become -inf, and a row without visible tokens (a padding item) NaN. Either number makes a masked score vanish.
    hidden = max(torch.finfo(x.dtype).min, torch.finfo(torch.float32).min)
    return torch.where(allowed, torch.zeros((), dtype=x.dtype, device=x.device), hidden)
