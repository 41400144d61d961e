"""Which parameters learn at a freeze point, and a tied matrix, whose two copies lie in the first and the last unit.

Both copies get the sum of the two uses' gradients, so that they stay equal; the head's copy stops with the embedding, unless
the job unties it when it freezes.
"""

from collections.abc import Iterable

import torch
from torch import nn

from frostline_trainer.step.context import RunContext
from frostline_trainer.transport.transport import Transport


def tie_learns(context: RunContext, freeze_point: int) -> bool:
    """Whether there is a tied matrix and both of its copies learn."""
    return context.cut.tied is not None and freeze_point == 0


def is_frozen_tie(context: RunContext, freeze_point: int, unit: int, name: str) -> bool:
    """Whether this is the head's copy of a tied matrix that has stopped with the embedding."""
    tied = context.cut.tied
    stopped = freeze_point > 0 and not context.job.model.untie_on_freeze
    return tied is not None and stopped and unit == context.num_units - 1 and name == tied[1]


def stop_frozen_tie(context: RunContext, freeze_point: int, units: Iterable[int]) -> None:
    """Of these units, the head's copy of a stopped tie takes no gradient: after the units were set frozen or learning."""
    for unit in units:
        for name, parameter in context.cut.units[unit].named_parameters():
            if is_frozen_tie(context, freeze_point, unit, name):
                parameter.requires_grad_(False)


def learning(context: RunContext, freeze_point: int, unit: int) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a unit that learn, in order: its part of a flat gradient."""
    named = context.cut.units[unit].named_parameters()
    return [(name, p) for name, p in named if p.requires_grad and not is_frozen_tie(context, freeze_point, unit, name)]


def sum_uses(gradients: list[torch.Tensor], transport: Transport, peer: int) -> None:
    """In place: both uses' gradients become their sum.

    gradients: of the uses held here. peer: where one is held elsewhere, its pipeline rank. The sum of two has one order.
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
