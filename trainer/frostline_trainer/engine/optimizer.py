"""The optimizer over a worker's trainable units, and the moments that outlive it.

Moments belong to (unit, parameter name), not to an optimizer object: a freeze, an unfreeze or a reshape builds a new optimizer
and the same moments and each parameter's own step count go on. Nothing decays while frozen.

The updates are AdamW's (Loshchilov and Hutter 2019, algorithm 2) and SGD's with momentum, in the order of operations of
torch.optim's foreach variants, so that the bits are theirs; a test holds the two together. On small tensors half of
torch.optim's time is bookkeeping that needs doing once, not in every step: a step that updates wards too (engine/keeping.py)
takes less time here than one without them took there.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.model import no_decay

Moments = dict[tuple[int, str], dict[str, torch.Tensor]]
"""(unit, parameter name) -> the optimizer's state of that parameter: exp_avg, exp_avg_sq and step, or momentum_buffer."""

ONE = torch.tensor(1.0)
"""For step counts: a number would be made into a tensor once for each of them."""


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
        section = self._section
        states = [self._adamw_state(key, parameter) for key, parameter in zip(keys, parameters, strict=True)]
        steps = [state["step"] for state in states]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        torch._foreach_add_(steps, ONE)
        if weight_decay != 0.0:
            torch._foreach_mul_(parameters, 1 - learning_rate * weight_decay)
        torch._foreach_lerp_(means, gradients, 1 - section.beta1)
        torch._foreach_mul_(squares, section.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - section.beta2)
        # Step counts lie in host memory and differ only between parameters that were frozen for different times.
        counts = [step.item() for step in steps]
        sizes = {count: (learning_rate / (1 - section.beta1**count)) * -1 for count in set(counts)}
        roots = {count: (1 - section.beta2**count) ** 0.5 for count in sizes}
        same = len(sizes) == 1
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, roots[counts[0]] if same else [roots[count] for count in counts])
        torch._foreach_add_(divisors, section.epsilon)
        torch._foreach_addcdiv_(parameters, means, divisors, sizes[counts[0]] if same else [sizes[count] for count in counts])

    def _adamw_state(self, key: tuple[int, str], parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        state = self._moments.get(key)
        if state is None:
            state = self._moments[key] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return state

    def _sgd(self, weight_decay: float, keys: list[tuple[int, str]], parameters: list[nn.Parameter],
             gradients: list[torch.Tensor], learning_rate: float) -> None:  # fmt: skip
        momentum = self._section.momentum
        if weight_decay != 0.0:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
        if momentum != 0.0:
            states = [self._moments.setdefault(key, {}) for key in keys]
            begun = [(state["momentum_buffer"], new) for state, new in zip(states, gradients, strict=True) if state]
            if begun:
                buffers = [buffer for buffer, _ in begun]
                torch._foreach_mul_(buffers, momentum)
                torch._foreach_add_(buffers, [gradient for _, gradient in begun])
            for state, gradient in zip(states, gradients, strict=True):
                if not state:
                    # The first buffer is the gradient itself, whatever the momentum.
                    state["momentum_buffer"] = gradient.clone()
            gradients = [state["momentum_buffer"] for state in states]
        torch._foreach_add_(parameters, gradients, alpha=-learning_rate)
