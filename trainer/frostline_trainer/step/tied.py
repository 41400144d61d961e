"""The parameters that learn at a freeze point, and tied matrices, which have one copy in the first and one in the last unit.

Both copies are updated with the sum of the two uses' gradients, so they stay equal. The head's copy stops learning when the
embedding freezes, unless the job unties them then.
"""

from collections.abc import Iterable

import torch
from torch import nn

from frostline_trainer.families.base import still_names
from frostline_trainer.step.context import RunContext
from frostline_trainer.transport.transport import Transport


def tie_learns(context: RunContext, freeze_point: int) -> bool:
    """Whether there is a tied matrix and both of its copies learn."""
    tied = context.cut.tied
    return tied is not None and freeze_point == 0 and tied[0] not in still_names(context.cut.units[0])


def is_frozen_tie(context: RunContext, freeze_point: int, unit: int, name: str) -> bool:
    """Whether this is the head's copy of a tied matrix that has frozen with the embedding."""
    tied = context.cut.tied
    stopped = freeze_point > 0 and not context.job.model.untie_on_freeze
    return tied is not None and stopped and unit == context.num_units - 1 and name == tied[1]


def stop_frozen_tie(context: RunContext, freeze_point: int, units: Iterable[int]) -> None:
    """Switch off the gradient of the head's copy of a frozen tie, if it is in these units, after units were (un)frozen."""
    for unit in units:
        for name, parameter in context.cut.units[unit].named_parameters():
            if is_frozen_tie(context, freeze_point, unit, name):
                parameter.requires_grad_(False)


def learning(context: RunContext, freeze_point: int, unit: int) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a unit that learn, in the order of its flat gradient."""
    named = context.cut.units[unit].named_parameters()
    return [(name, p) for name, p in named if p.requires_grad and not is_frozen_tie(context, freeze_point, unit, name)]


def sum_uses(gradients: list[torch.Tensor], transport: Transport, peer: int) -> None:
    """Replace both uses' gradients by their sum, in place. A sum of two has only one order.

    gradients: of the uses that this member holds. peer: the pipeline rank that holds the other use, if this member has one only.
    """
    if len(gradients) == 2:
        total = gradients[0] + gradients[1]
    else:
        total = torch.empty_like(gradients[0])
        received = transport.receive(total, peer)
        transport.wait_all([received, transport.send(gradients[0], peer)])
        total += gradients[0]
    for gradient in gradients:
        gradient.copy_(total)
