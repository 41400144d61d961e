"""The optimizer of a worker's trainable units: AdamW or SGD, over moments that outlive the optimizer object.

Moments belong to (piece, parameter name). A freeze, an unfreeze or a reshape builds a new optimizer object, which continues with
the same moments and each parameter's own step count. Nothing decays while frozen. A worker that owns only some pieces of a unit
updates only their parts of its parameters, with the bits of an update of the whole (`step.parts`).

The updates are torch's functional AdamW and SGD, without the bookkeeping that an Optimizer object repeats in every step
(docs/adr/0005-exact-step.md). AdamW is torch's fused kernel, one pass over memory. On a GPU this kernel needs the step counts in
device memory; they are filled in from counts in host memory, which checkpoints and state transfers read without a wait.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import Pieces
from frostline_trainer.model import no_decay
from frostline_trainer.step.local_shards import is_in_module, part_of
from frostline_trainer.step.parts import Moments as Moments
from frostline_trainer.step.parts import Part, flat, parts_of, write

PartGradients = Mapping[tuple[int, str], torch.Tensor]
"""(piece, parameter name) -> gradient of the piece's part of that parameter, flat."""


@dataclass
class _Updated:
    """One parameter, or the part of it that is updated. key: of its moments. part: its elements; None: all, in their shape."""

    key: tuple[int, str]
    unit: nn.Module
    parameter: nn.Parameter
    part: Part | None
    _view: torch.Tensor | None = None

    @property
    def weights(self) -> list[torch.Tensor]:
        """The parameter or its part, wherever the state is now; as several views where it does not lie in one."""
        if self.part is None:
            return [self.parameter]
        view = self._view
        if view is not None and view.data_ptr() == self._address and is_in_module(self.unit):
            return [view]
        views = part_of(self.unit, self.key[0], self.part, self.parameter)
        # A view takes longer to make than a bias to update, so it is kept for as long as the parameter's memory is the same.
        self._view = views[0] if self.part.tile is None and is_in_module(self.unit) else None
        return views

    @property
    def _address(self) -> int:
        """Where the part begins in the parameter's memory."""
        assert self.part is not None
        return self.parameter.data_ptr() + self.part.low * self.parameter.element_size()

    def gradient(self, given: PartGradients | None) -> torch.Tensor | None:
        """The part's gradient: from `given`, or from the parameter's `.grad` without it."""
        if given is not None:
            return given.get(self.key)
        gradient = self.parameter.grad
        return gradient if gradient is None or self.part is None else flat(self.part.of(self.unit, gradient))


@dataclass
class _Group:
    """Parameters (or parts) with the same weight decay."""

    weight_decay: float
    updated: list[_Updated] = field(default_factory=list)


class UnitOptimizer:
    """AdamW or SGD over the trainable parameters of (unit index, unit) pairs; its state is in `moments`.

    table: of the run's pieces; None: one piece a unit. pieces: those that this worker updates; None: all of these units.
    """

    def __init__(self, section: OptimizerSection, units: Iterable[tuple[int, nn.Module]], moments: Moments,
                 table: Pieces | None = None, pieces: Collection[int] | None = None) -> None:  # fmt: skip
        self._section, self._moments = section, moments
        decayed, spared = _Group(section.weight_decay), _Group(0.0)
        for unit, module in units:
            for updated in _updated_of(unit, module, table, pieces):
                parameter, name = updated.parameter, updated.key[1]
                if updated.part is None and not parameter.is_contiguous():  # the fused kernel ignores strides
                    raise ValueError(f"parameter {name} of unit {unit} has strides {parameter.stride()}; make it contiguous")
                (spared if no_decay(module, name, parameter) else decayed).updated.append(updated)
        self._groups = [group for group in (decayed, spared) if group.updated]

    @torch.no_grad()
    def step(self, learning_rate: float, gradients: PartGradients | None = None) -> None:
        """Make one update; a parameter without gradient is not changed. gradients: None: the parameters' `.grad`."""
        update = self._sgd if self._section.name == "sgd" else self._adamw
        for group in self._groups:
            paired = [(one, one.gradient(gradients)) for one in group.updated]
            known = [(one.key, one.weights, gradient) for one, gradient in paired if gradient is not None]
            if whole := [(key, views[0], gradient) for key, views, gradient in known if _lies_in_one(views)]:
                keys, parameters, found = map(list, zip(*whole, strict=True))
                update(group.weight_decay, keys, parameters, found, learning_rate)
            for key, views, gradient in known:  # part of a tile in several blocks: by way of a copy, one at a time
                if not _lies_in_one(views):
                    copy = flat(views)
                    update(group.weight_decay, [key], [copy], [gradient.reshape(-1)], learning_rate)
                    write(views, copy)

    def _adamw(self, weight_decay: float, keys: list[tuple[int, str]], parameters: list[torch.Tensor],
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

    def _adamw_state(self, key: tuple[int, str], parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self._moments.get(key)
        if state is None:
            state = self._moments[key] = {
                # In host memory, even for a parameter on a device, so that reading it waits for no device.
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return state

    def _sgd(self, weight_decay: float, keys: list[tuple[int, str]], parameters: list[torch.Tensor],
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
                # The first update creates the momentum buffers and puts them into the list.
                self._moments.setdefault(key, {})["momentum_buffer"] = buffer


def _updated_of(unit: int, module: nn.Module, table: Pieces | None, pieces: Collection[int] | None) -> list[_Updated]:
    """The trainable parameters of a unit, in order, or their parts piece by piece."""
    learning = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if table is None or table.per_unit == 1:
        return [_Updated((unit, name), module, parameter, None) for name, parameter in learning.items()]
    return [
        _Updated((piece, part.name), module, learning[part.name], part)
        for piece in table.of_unit(unit)
        if pieces is None or piece in pieces
        for part in parts_of(table, piece, module)
        if part.name in learning
    ]


def _lies_in_one(views: Sequence[torch.Tensor]) -> bool:
    """Whether the elements of a weight or of its part lie one behind the other."""
    return len(views) == 1 and views[0].is_contiguous()


def fused_on_device(section: OptimizerSection, parameters: list[torch.Tensor], gradients: list[torch.Tensor],
                    states: list[dict[str, torch.Tensor]], weight_decay: float, learning_rate: float) -> None:  # fmt: skip
    """torch's fused AdamW on a device, with step counts in host memory.

    Counts are raised on the host; one scalar on the device is filled for each different count, without a wait. Parameters that
    began to learn together share a count.
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
