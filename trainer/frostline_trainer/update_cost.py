"""Measures the cost of an update: the gradient's norm, clipping and the optimizer, on copies of the weights."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.step.norms import gradient_norms, host_figures
from frostline_trainer.step.optimizer import UnitOptimizer

COPIED_BYTES_MAX = 64 << 20
"""Limit of weights that are copied: copy, gradient and moments take four times that, far more than a processor's caches, so that
the cost for each byte no longer depends on the size."""


class Update:
    """An update like that of a step's commit, on copies; the weights themselves do not change.

    learning: weights of one unit that learn, at least one.
    weight_bytes: size of the copies: at most COPIED_BYTES_MAX of the weights, so that a large unit can be measured on a device on
    which only the unit itself fits.
    """

    def __init__(self, section: OptimizerSection, learning: Sequence[nn.Parameter]) -> None:
        copies = list(_copies(learning))
        self.weight_bytes = sum(copy.nbytes for copy in copies)
        self._total = torch.cat([torch.zeros_like(copy) for copy in copies])
        parts = self._total.split([copy.numel() for copy in copies])
        for copy, part in zip(copies, parts, strict=True):
            copy.grad = part
        self._gradients = [(0, part) for part in parts]
        self._optimizer = UnitOptimizer(section, [(0, nn.ParameterList(copies))], {})

    def __call__(self) -> None:
        host_figures(gradient_norms(self._gradients))
        self._total.mul_(1.0)
        self._optimizer.step(0.0)


def _copies(learning: Sequence[nn.Parameter]) -> Iterator[nn.Parameter]:
    """Zeros in place of the weights, flat."""
    room = COPIED_BYTES_MAX
    for weight in learning:
        numel = min(weight.numel(), room // weight.element_size())
        if numel:
            yield nn.Parameter(torch.zeros(numel, dtype=weight.dtype, device=weight.device))
            room -= numel * weight.element_size()
