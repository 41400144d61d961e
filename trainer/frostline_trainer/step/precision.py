"""The types of a run's numbers, and how a unit computes in them.

mixed_bfloat16 is torch's autocast over float32 weights: matrix products and attention compute in bfloat16, and operations that
autocast lists as sensitive in float32. Weight gradients are computed and summed in float32. Every unit's output is rounded to
bfloat16, wherever the model is cut, so that a boundary has the same bits whether it is sent, cached or passed on within a stage.
"""

import contextlib
from dataclasses import dataclass

import torch

from frostline_contract.precision import VALUE_TYPES, resolve_precision


@dataclass(frozen=True)
class Precision:
    """The types in which a job computes, keeps its weights and sends its boundaries.

    name: as in the job file, but never auto. weights: type of weights, gradient sums and moments. boundary: type of every unit's
    output but the logits, and of that output's gradient.
    """

    name: str
    weights: torch.dtype
    boundary: torch.dtype

    @property
    def is_mixed(self) -> bool:
        """Whether units compute and send in another type than that of their weights."""
        return self.weights != self.boundary

    @property
    def numerics(self) -> str:
        """For the numerics hash: the types of weights and boundaries in words; "" if they are the same."""
        return f"{self.name}: boundaries {self.boundary}" if self.is_mixed else ""

    def computing(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """A context in which units compute in this precision."""
        return torch.autocast(device.type, dtype=self.boundary) if self.is_mixed else contextlib.nullcontext()


def precision_of(name: str, device: torch.device) -> Precision:
    """The precision for a job's `training.precision` on a device."""
    chosen = resolve_precision(name, device.type == "cuda")
    types = VALUE_TYPES[chosen]
    return Precision(chosen, getattr(torch, types.weights), getattr(torch, types.boundary))
