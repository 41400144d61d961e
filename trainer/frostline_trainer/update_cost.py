"""What an update costs for a byte of weights: their gradient's norm, clipping and the optimizer, on copies of the weights."""

from collections.abc import Sequence

import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.step.norms import gradient_norms, tell
from frostline_trainer.step.optimizer import UnitOptimizer


class Update:
    """An update of copies, as a step's commit does it; the weights themselves stay as they are.

    learning: weights of one unit that learn, at least one.
    """

    def __init__(self, section: OptimizerSection, learning: Sequence[nn.Parameter]) -> None:
        copies = [nn.Parameter(torch.zeros_like(weight)) for weight in learning]
        self._total = torch.cat([torch.zeros_like(weight).flatten() for weight in learning])
        parts = self._total.split([weight.numel() for weight in learning])
        for copy, part in zip(copies, parts, strict=True):
            copy.grad = part.view_as(copy)
        self._gradients = [(0, part) for part in parts]
        self._optimizer = UnitOptimizer(section, [(0, nn.ParameterList(copies))], {})

    def __call__(self) -> None:
        tell(gradient_norms(self._gradients))
        self._total.mul_(1.0)
        self._optimizer.step(0.0)
