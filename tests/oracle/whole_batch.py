"""The reference of the plain loop itself: one backward of the entire batch at once (docs/protocols.md 1.11)."""

import torch
from torch import Tensor
from transformers import BertForQuestionAnswering, PreTrainedModel

from tests.oracle.anatomy import anatomy_of
from tests.oracle.plain_loop import Recipe, accumulate, loss_of, seed_of, valid_counts
from tests.oracle.tiles import InTiles

BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6}
"""Largest relative gap of a gradient, by type."""


def whole_batch_gradient(model: PreTrainedModel, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of the batch's loss by one forward and one backward, by Hugging Face parameter name, dropout off.

    The model is not changed: a tied matrix stays tied and has one gradient, under its embedding's name.
    """
    was_training = model.training
    model.eval()
    anatomy = anatomy_of(model, untie=False)
    named = dict(model.named_parameters())
    loss = loss_of(anatomy, batch, valid_counts(anatomy, batch))
    gradients = torch.autograd.grad(loss, list(named.values()))
    model.train(was_training)
    return dict(zip(named, gradients, strict=True))


def accumulated_gradient(model: PreTrainedModel, batch: dict[str, Tensor], recipe: Recipe) -> dict[str, Tensor]:
    """Return the same gradient as the plain loop sums it, micro-batch by micro-batch, dropout off. Unties the model."""
    anatomy = anatomy_of(model)
    model.eval()
    tiles = InTiles.of(anatomy, recipe, seed_of)
    accumulate(anatomy, batch, recipe, {"step": 1, "micro_batch": 0})
    if tiles:
        tiles.remove()
    copy = anatomy.name(anatomy.tied[1]) if anatomy.tied else None
    return {name: p.grad for name, p in model.named_parameters() if name != copy and p.grad is not None}


def relative_gap(gradient: dict[str, Tensor], reference: dict[str, Tensor], vanishing: frozenset[str] = frozenset()) -> float:
    """Return max|g - ref| / max(max|ref|, 1e-3 * largest max|ref| of any tensor), over all tensors.

    vanishing: tensors whose gradient is zero in exact arithmetic (see `vanishing_gradients`): only rounding errors of other
    numbers are left of them, so their scale is the largest of any tensor. Raises ValueError where a tensor is missing on one
    side.
    """
    if gradient.keys() != reference.keys():
        raise ValueError(f"tensors on one side only: {sorted(gradient.keys() ^ reference.keys())}")
    largest = max(float(ref.abs().max()) for ref in reference.values())
    gaps = []
    for name, ref in reference.items():
        scale = largest if name in vanishing else max(float(ref.abs().max()), 1e-3 * largest)
        gaps.append(float((gradient[name].double() - ref.double()).abs().max()) / scale)
    return max(gaps)


def vanishing_gradients(model: PreTrainedModel) -> frozenset[str]:
    """Return the parameters that shift all scores of a softmax equally, so that the loss does not depend on them.

    A span head's bias is added to every token's score. (Attention's key biases vanish too, but stay within the metric.)
    """
    return frozenset({"qa_outputs.bias"} if isinstance(model, BertForQuestionAnswering) else ())
