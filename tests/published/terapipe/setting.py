"""TeraPipe's settings, and the seconds of a slice in a stage from stated constants."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FIGURES = Path(__file__).with_name("figures.yaml")
TOKENS = 2048
MATRIX_FLOPS, CONTEXT_FLOPS = 72, 12
"""Forward and backward of a block: FLOPs a token over width^2, and over width and each token of the context."""
TRAFFIC_BYTES = 8
"""Bytes a token and block over the width that tensor parallelism moves: four all-reduces in half precision, once each."""


@dataclass(frozen=True)
class Constants:
    """The constants that describe one of the paper's devices.

    Attributes:
        call_seconds: seconds of a block for each slice, however short.
        flops_per_second: of a device.
        traffic_bytes_per_second: of tensor parallelism.
        call_tokens: extra cost of each call, as the FLOPs of so many tokens: the loss of short matrices.
    """

    call_seconds: float
    flops_per_second: float
    traffic_bytes_per_second: float
    call_tokens: float


@dataclass(frozen=True)
class Setting:
    """A line of a published table.

    Attributes:
        name: for people.
        blocks: of a stage.
        width: of the model.
        stages: of the pipeline.
        tensor: devices that share a stage.
        replicas: of the pipeline.
        sequences: that one replica trains in a step.
        tokens: of a sequence.
        constants: of the device.
        whole: published seconds without slices.
        sliced: published seconds with the slices of their dynamic programme.
    """

    name: str
    blocks: int
    width: int
    stages: int
    tensor: int
    replicas: int
    sequences: int
    tokens: int
    constants: Constants
    whole: float
    sliced: float

    def slice_seconds(self, tokens: float, before: float, sequences: int = 1) -> float:
        """Return a stage's seconds for forward and backward of `tokens` tokens behind `before` others, of `sequences` at once."""
        constants, count = self.constants, sequences * tokens
        matrices = MATRIX_FLOPS * self.width**2 * (count + constants.call_tokens)
        context = CONTEXT_FLOPS * self.width * count * (before + tokens / 2)
        traffic = TRAFFIC_BYTES * self.width * count / constants.traffic_bytes_per_second if self.tensor > 1 else 0.0
        arithmetic = (matrices + context) / self.tensor / constants.flops_per_second
        return self.blocks * (constants.call_seconds + arithmetic + traffic)

    @property
    def exchange_seconds(self) -> float:
        """Return the seconds of the gradients' sum over replicas: half precision, a ring, a machine's devices on its one line."""
        machine = figures()["machine"]
        parameters = 12 * self.width**2 * self.blocks / self.tensor
        sent = 2 * parameters * 2 * (self.replicas - 1) / self.replicas
        return float(sent * machine["devices"] / machine["network_bytes_per_second"])

    @property
    def sequence_bytes(self) -> float:
        """Return bytes of one sequence's activations on a stage's device (arXiv 2205.05198, section 4, without the scores)."""
        return self.blocks * self.tokens * self.width * (10 + 24 / self.tensor)


@cache
def figures() -> dict[str, Any]:
    """Return the content of figures.yaml."""
    found: dict[str, Any] = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    return found


@cache
def settings() -> dict[int, Setting]:
    """Return the ten settings, by their published number."""
    return {number: _setting(number, reported) for number, reported in figures()["settings"].items()}


@cache
def length_settings() -> dict[int, Setting]:
    """Return setting 5 by the tokens of a sequence."""
    return {
        tokens: replace(settings()[5], name=f"13B, {tokens} tokens", tokens=tokens, **reported)
        for tokens, reported in figures()["lengths"].items()
    }


def _setting(number: int, reported: dict[str, Any]) -> Setting:
    model, replicas = figures()["models"][reported["model"]], reported["replicas"]
    copies = f"{replicas} replica{'s' * (replicas > 1)}"
    return Setting(
        name=f"({number}) {reported['model']}, {reported['stages']} stages of {reported['tensor']}, {copies}",
        blocks=model["blocks"] // reported["stages"],
        width=model["width"],
        stages=reported["stages"],
        tensor=reported["tensor"],
        replicas=replicas,
        sequences=reported["sequences"] // replicas,
        tokens=TOKENS,
        constants=Constants(**{name: float(value) for name, value in figures()["constants"][model["constants"]].items()}),
        whole=reported["whole"],
        sliced=reported["sliced"],
    )
