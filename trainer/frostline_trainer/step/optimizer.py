"""The optimizer over a worker's trainable units, and the moments that outlive it.

Moments belong to (unit, parameter name), not to an optimizer object: a freeze, an unfreeze or a reshape builds a new optimizer
and the same moments and each parameter's own step count go on. Nothing decays while frozen.

The updates are torch's functional AdamW and SGD: the arithmetic is the library's, the bookkeeping that an Optimizer object
repeats in every step is not done (docs/adr/0005-exact-step.md). AdamW is the library's fused kernel, one pass over memory. On a
device it wants step counts there: they are made for it from the host's, which checkpoints and moves read without a wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.model import no_decay

Moments = dict[tuple[int, str], dict[str, torch.Tensor]]
"""(unit, parameter name) -> the optimizer's state of that parameter: exp_avg, exp_avg_sq and step, or momentum_buffer."""


@dataclass
class _Group:
    """Parameters with one weight decay, and the key of each one's moments."""

    weight_decay: float
    keys: list[tuple[int, str]]
    parameters: list[nn.Parameter]


class UnitOptimizer:
    """AdamW or SGD over the trainable parameters of (unit index, unit) pairs; state is taken from and kept in `moments`."""

    def __init__(self, section: OptimizerSection, units: Iterable[tuple[int, nn.Module]], moments: Moments) -> None:
        self._section, self._moments = section, moments
        decayed, spared = _Group(section.weight_decay, [], []), _Group(0.0, [], [])
        for unit, module in units:
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    if not parameter.is_contiguous():  # the fused kernel takes memory as it lies
                        raise ValueError(f"parameter {name} of unit {unit} has strides {parameter.stride()}; make it contiguous")
                    group = spared if no_decay(module, name, parameter) else decayed
                    group.keys.append((unit, name))
                    group.parameters.append(parameter)
        self._groups = [group for group in (decayed, spared) if group.keys]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update from the parameters' `.grad`; those without one stay as they are."""
        update = self._sgd if self._section.name == "sgd" else self._adamw
        for group in self._groups:
            paired = list(zip(group.keys, group.parameters, strict=True))
            keys = [key for key, parameter in paired if parameter.grad is not None]
            parameters = [parameter for parameter in group.parameters if parameter.grad is not None]
            if keys:
                update(group.weight_decay, keys, parameters, [parameter.grad for parameter in parameters], learning_rate)

    def _adamw(self, weight_decay: float, keys: list[tuple[int, str]], parameters: list[nn.Parameter],
               gradients: list[torch.Tensor], learning_rate: float) -> None:  # fmt: skip
        states = [self._adamw_state(key, parameter) for key, parameter in zip(keys, parameters, strict=True)]
        section, device = self._section, parameters[0].device
        if device.type != "cpu":
            fused_on_device(section, parameters, gradients, states, weight_decay, learning_rate)
            return
        adamw(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=False,
            fused=True,
            amsgrad=False,
            beta1=section.beta1,
            beta2=section.beta2,
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=section.epsilon,
            maximize=False,
        )

    def _adamw_state(self, key: tuple[int, str], parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        state = self._moments.get(key)
        if state is None:
            state = self._moments[key] = {
                # In host memory, wherever the parameter lies, so that reading it waits for no device.
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return state

    def _sgd(self, weight_decay: float, keys: list[tuple[int, str]], parameters: list[nn.Parameter],
             gradients: list[torch.Tensor], learning_rate: float) -> None:  # fmt: skip
        momentum = self._section.momentum
        buffers = [self._moments.get(key, {}).get("momentum_buffer") for key in keys]
        sgd(
            parameters,
            gradients,
            buffers,
            foreach=True,
            weight_decay=weight_decay,
            momentum=momentum,
            lr=learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for key, buffer in zip(keys, buffers, strict=True):
            if momentum != 0.0:
                # The first update has put new buffers into the list.
                self._moments.setdefault(key, {})["momentum_buffer"] = buffer


def fused_on_device(section: OptimizerSection, parameters: list[nn.Parameter], gradients: list[torch.Tensor],
                    states: list[dict[str, torch.Tensor]], weight_decay: float, learning_rate: float) -> None:  # fmt: skip
    """The library's fused AdamW where step counts lie in host memory.

    Each is counted there, and one scalar a count is filled in on the device, which waits for nothing. Parameters that began to
    learn together share a count.
    """
    together: dict[float, list[int]] = {}
    for place, state in enumerate(states):
        state["step"] += 1
        together.setdefault(float(state["step"]), []).append(place)
    for count, places in together.items():
        step = torch.full((), count, dtype=torch.float32, device=parameters[0].device)
        torch._fused_adamw_(
            [parameters[place] for place in places],
            [gradients[place] for place in places],
            [states[place]["exp_avg"] for place in places],
            [states[place]["exp_avg_sq"] for place in places],
            [],
            [step] * len(places),
            lr=learning_rate,
            beta1=section.beta1,
            beta2=section.beta2,
            weight_decay=weight_decay,
            eps=section.epsilon,
            amsgrad=False,
            maximize=False,
        )
