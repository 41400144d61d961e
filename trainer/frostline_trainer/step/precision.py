"""The types of a run's numbers, and how a unit computes in them.

mixed_bfloat16 is torch's autocast over float32 weights: matrix products and attention compute in bfloat16, what torch lists as
delicate in float32. Gradients of weights come out in float32 and add up in float32. Every unit's output is rounded to bfloat16,
wherever the model is cut, so that a boundary has the same bits whether it is sent, cached or handed on within a stage.
"""

import contextlib
from dataclasses import dataclass

import torch

from frostline_contract.precision import VALUE_TYPES, resolve_precision


@dataclass(frozen=True)
class Precision:
    """The types in which a job computes, keeps its weights and sends its boundaries.

    name: as a job says it, never auto. weights: type of weights, sums of gradients and moments. boundary: of every unit's
    output but the logits, and of its gradient.
    """

    name: str
    weights: torch.dtype
    boundary: torch.dtype

    @property
    def is_mixed(self) -> bool:
        """Whether units compute and send in another type than their weights are kept in."""
        return self.weights != self.boundary

    @property
    def numerics(self) -> str:
        """What the numerics' history must name: types that differ between weights and boundaries; "" where there is one."""
        return f"{self.name}: boundaries {self.boundary}" if self.is_mixed else ""

    def computing(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Inside, units compute in this precision."""
        return torch.autocast(device.type, dtype=self.boundary) if self.is_mixed else contextlib.nullcontext()


def precision_of(name: str, device: torch.device) -> Precision:
    """The precision that a job's training.precision means on a device."""
    chosen = resolve_precision(name, device.type == "cuda")
    types = VALUE_TYPES[chosen]
    return Precision(chosen, getattr(torch, types.weights), getattr(torch, types.boundary))
