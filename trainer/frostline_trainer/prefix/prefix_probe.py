"""The prefix probe: a digest of frozen units' outputs on this machine, in the job's precision (docs/protocols.md 11.1).

It is part of every cached value's key. The start-up probe does not serve for this: it runs a step on the run's own first samples,
with the run's dropout and optimizer. So two runs with another seed or weight decay could not share values, although their frozen
units compute the same.
"""

import copy
import hashlib

import torch

from frostline_trainer.data.order import PADDING
from frostline_trainer.process.probe import computes_on, draw_weights, drawn, drawn_pattern
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.unit_kinds import first_of_its_kind

MASK = "attention_mask"


def probe_prefix(context: RunContext) -> str:
    """Hex SHA-256 of one forward of each kind of unit that may freeze, as frozen units run. Leaves the model as it was."""
    digest = hashlib.sha256(computes_on(context)[0].encode())
    pattern = drawn_pattern(context.device, context.precision.weights)
    inputs = _inputs(context, pattern)
    for index, first in enumerate(first_of_its_kind(context.cut.units)[:-1]):
        if index != first:
            continue
        unit = copy.deepcopy(context.cut.units[index]).to(context.device)
        draw_weights(unit, pattern)
        entry = drawn(pattern, context.hidden_like()) if index > 0 else None
        output = Stage([unit], index, index + 1, stage_settings(context)).run_frozen(entry, inputs)
        digest.update(output.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _inputs(context: RunContext, pattern: torch.Tensor) -> dict[str, torch.Tensor]:
    """Inputs of one micro-batch without samples: random numbers; tokens of padding, three quarters of them visible."""
    count = context.micro_batch_size
    inputs = context.on_device(context.data.train.collate([PADDING] * count, [0] * count))
    for name, tensor in inputs.items():
        if tensor.is_floating_point():
            drawn(pattern, tensor)
        elif name == MASK:
            visible = -(-3 * tensor.shape[1] // 4)
            tensor[:, :visible], tensor[:, visible:] = 1, 0
    return inputs
