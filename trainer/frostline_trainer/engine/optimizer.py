"""The optimizer over a worker's trainable units, and the moments that outlive it.

Moments belong to (unit, parameter name), not to an optimizer object: a freeze, an unfreeze or a reshape builds a new optimizer
and puts the same moments and each parameter's own step count back. Nothing decays while frozen.
"""

from collections.abc import Iterable

import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.model import no_decay

Moments = dict[tuple[int, str], dict[str, torch.Tensor]]
"""(unit, parameter name) -> the optimizer's state of that parameter: exp_avg, exp_avg_sq and step, or momentum_buffer."""


class UnitOptimizer:
    """AdamW or SGD over the trainable parameters of (unit index, unit) pairs; state is taken from and kept in `moments`."""

    def __init__(self, section: OptimizerSection, units: Iterable[tuple[int, nn.Module]], moments: Moments) -> None:
        self._moments = moments
        modules = dict(units)
        self._names = [
            (unit, name, parameter)
            for unit, module in modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]
        exempt = [no_decay(modules[unit], name, parameter) for unit, name, parameter in self._names]
        marked = list(zip(exempt, (parameter for _, _, parameter in self._names), strict=True))
        groups = [
            {"params": [parameter for spared, parameter in marked if not spared], "weight_decay": section.weight_decay},
            {"params": [parameter for spared, parameter in marked if spared], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self._optimizer: torch.optim.Optimizer | None = _build(section, groups) if groups else None
        for unit, name, parameter in self._names:
            if (unit, name) in moments:
                assert self._optimizer is not None
                self._optimizer.state[parameter] = moments[unit, name]

    def step(self, learning_rate: float) -> None:
        """One update from the parameters' `.grad`."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        if len(self._moments) < len(self._names) or any((u, n) not in self._moments for u, n, _ in self._names):
            self._adopt()

    def _adopt(self) -> None:
        """The first step creates state: from then on `moments` holds the very same tensors."""
        assert self._optimizer is not None
        for unit, name, parameter in self._names:
            self._moments[unit, name] = self._optimizer.state[parameter]


def _build(section: OptimizerSection, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    if section.name == "sgd":
        return torch.optim.SGD(groups, lr=section.learning_rate, momentum=section.momentum, foreach=True)
    return torch.optim.AdamW(
        groups,
        lr=section.learning_rate,
        betas=(section.beta1, section.beta2),
        eps=section.epsilon,
        foreach=True,
    )
