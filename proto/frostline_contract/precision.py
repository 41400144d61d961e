"""The types that training.precision stands for: of weights, and of tensors that cross from unit to unit."""

from typing import Literal, NamedTuple

PrecisionName = Literal["auto", "float32", "float64", "bfloat16", "mixed_bfloat16"]


class ValueTypes(NamedTuple):
    """The names of a precision's types.

    Attributes:
        weights: type of weights, gradient sums and moments.
        boundary: type of the activations that cross a cut between units, and of their gradients.
    """

    weights: str
    boundary: str


VALUE_TYPES = {
    "float32": ValueTypes("float32", "float32"),
    "float64": ValueTypes("float64", "float64"),
    "bfloat16": ValueTypes("bfloat16", "bfloat16"),
    "mixed_bfloat16": ValueTypes("float32", "bfloat16"),
}
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


def resolve_precision(name: str, on_gpu: bool) -> str:
    """The precision that a run computes in: auto is mixed_bfloat16 on GPUs and float32 on CPUs."""
    if name != "auto":
        return name
    return "mixed_bfloat16" if on_gpu else "float32"
