"""The start-up check that the content of padding changes no result, so that the cache need not store it (`own_tokens`).

The property `padding_blind` of a family and a task holds only if the machine's kernels give a masked token exactly the weight 0.
So the check runs the job's own units, samples, shapes and precision, forward and backward.
"""

import numpy as np
import torch

from frostline_trainer.families.base import learnable
from frostline_trainer.model import set_frozen
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.chunks import Inputs
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.one_unit import OneUnit
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.unit_kinds import first_of_its_kind
from frostline_trainer.step.unit_state import lent_to


def find_padding_dependence(context: RunContext, own: np.ndarray) -> str:
    """The unit whose results change with the content of padding, in words; empty if there is none.

    Computes each distinct unit behind the embedding on one micro-batch of padded samples, forward and backward, then again with
    zeros for padding. At the samples' own tokens, outputs and gradients of weights and inputs must have the same bits; padding
    must get a gradient of exactly 0.

    Args:
        context: the run's model and data, on this worker.
        own: how many tokens each training sample has before its padding.
    """
    samples = _padded_samples(context, own)
    inputs = context.on_device(context.data.train.collate(samples, [0] * len(samples)))
    lengths = torch.as_tensor(own[samples], device=context.device)
    padding = torch.arange(context.hidden_shape[0], device=context.device) >= lengths[:, None]
    hidden = None
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        for number, first in enumerate(first_of_its_kind(context.cut.units)):
            if number != first:
                continue
            unit = context.cut.units[number]
            with lent_to(context.device, context.pieces.of_unit(number), unit, context.moments):
                if hidden is not None and not _is_blind(context, number, hidden, inputs, padding, samples):
                    return f"{context.cut.unit_names[number]} gives other bits for other padding ({context.precision.name})"
                if number + 1 < context.num_units:
                    hidden = Stage([unit], number, number + 1, stage_settings(context)).run_frozen(hidden, inputs)
                    set_frozen(unit, False)
    return ""


def _padded_samples(context: RunContext, own: np.ndarray) -> list[int]:
    """A micro-batch of padded samples: the shortest ones, with the longest at the end if there is more than one."""
    ascending = np.argsort(own, kind="stable")
    chosen = np.resize(ascending, context.micro_batch_size)
    if len(chosen) > 1:
        chosen[-1] = ascending[-1]
    return chosen.tolist()


def _is_blind(context: RunContext, number: int, hidden: torch.Tensor, inputs: Inputs, padding: torch.Tensor,
              samples: list[int]) -> bool:  # fmt: skip
    """Whether a unit gives the same bits with zeros for padding, and padding gets no gradient. Arguments as in `_results`."""
    found = [_results(context, number, entry, inputs, padding, samples)
             for entry in (hidden, hidden.masked_fill(padding[:, :, None], 0))]  # fmt: skip
    same = all(torch.equal(_bits(one), _bits(other)) for one, other in zip(*[results for results, _ in found], strict=True))
    return same and not any(bool(reached) for _, reached in found)


def _results(context: RunContext, number: int, hidden: torch.Tensor, inputs: Inputs, padding: torch.Tensor,
             samples: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:  # fmt: skip
    """The results of a unit's forward and backward that must not change, and whether padding got a gradient.

    Args:
        context: the run's model and data, on this worker.
        number: of the unit.
        hidden: the unit's input (samples, tokens, width).
        inputs: the micro-batch's inputs.
        padding: bool (samples, tokens), true for padding.
        samples: numbers of the samples.
    """
    unit, is_head = context.cut.units[number], number == context.num_units - 1
    counts = context.task.loss_counts(context.data.train, samples)
    stage = Stage([unit], number, 0, stage_settings(context))
    entry = hidden.detach().clone().requires_grad_()
    score = (lambda logits, of: context.task.loss(logits, of, counts)) if is_head else None
    run = OneUnit(stage, inputs, entry, score, context.grid)
    output = run.forward()
    run.backward(None if is_head else (~padding)[:, :, None].to(output.dtype).expand_as(output).contiguous())
    weights = [weight.grad for weight in learnable(unit).values() if weight.grad is not None]
    for weight in unit.parameters():
        weight.grad = None
    assert entry.grad is not None
    return [output if is_head else output[~padding], entry.grad[~padding], *weights], (entry.grad[padding] != 0).any()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
