"""The start-up check that a sample's boundary activation does not depend on its place in a tile, nor on its neighbours.

A cached run computes in one tile the samples that miss the cache; an uncached run computes them with their micro-batch. Both have
the same bits only if the machine's kernels give a row of a product the same bits at every place of a tile, with any neighbours.
Most do; MKL's float64 product on AVX2 does not at some shapes. So this is measured at start with the job's own units, samples,
shapes and precision.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from frostline_contract.job import Job
from frostline_trainer.data.augment import cache_refusal
from frostline_trainer.model import set_frozen
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.chunks import Inputs
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.unit_kinds import first_of_its_kind
from frostline_trainer.step.unit_state import lent_to

TIMED_TURNS = 3


def may_use_cache(job: Job) -> bool:
    """Whether this job may ever read a frozen prefix from the cache in exact numerics; only then is the check needed."""
    wanted = job.elastic.cache and job.elastic.freeze and job.cache.use != "never"
    return wanted and job.training.numerics == "exact" and cache_refusal(job) is None


def find_place_dependence(context: RunContext) -> str:
    """The unit whose output for a sample changes with the sample's place or neighbours, in words; empty if there is none.

    Computes each distinct unit but the last one (shapes alone distinguish blocks) on one micro-batch of real samples, then again
    reversed, shifted by one, with other neighbours, and beside padding, and compares bits sample by sample.
    """
    for number, unit, hidden, inputs in _distinct_units(context):
        whole = _forward(context, unit, hidden, inputs)
        size = whole.shape[0]
        for name, order in _arrangements(size):
            moved = _forward(context, unit, _take(hidden, order), {key: value[order] for key, value in inputs.items()})
            if not torch.equal(_bits(moved), _bits(whole[order])):
                return (
                    f"{context.cut.unit_names[number]} gives a sample other bits in a tile of {size} x {context.hidden_shape[0]} "
                    f"tokens that is {name} ({context.precision.name})"
                )
    return ""


def find_address_dependence(context: RunContext) -> str:
    """The unit whose output changes if its operands lie off a 64-byte boundary, in words; empty if there is none.

    Frostline aligns every operand, so such a unit breaks no promise; it only shows that kernels are chosen by address.
    """
    for number, unit, hidden, inputs in _distinct_units(context):
        whole = _forward(context, unit, hidden, inputs)
        weights = {name: _misaligned(tensor) for name, tensor in unit.state_dict().items()}
        with _swapped(unit, weights):
            moved = _forward(
                context, unit, None if hidden is None else _misaligned(hidden), {k: _misaligned(v) for k, v in inputs.items()}
            )
        if not torch.equal(_bits(moved), _bits(whole)):
            return f"{context.cut.unit_names[number]} has other bits at other addresses"
    return ""


def measure_sample_tiles(context: RunContext) -> float:
    """Seconds of computing the units one sample at a time, divided by the seconds by whole micro-batches; at least 1."""
    whole_seconds = single_seconds = 0.0
    for _, unit, hidden, inputs in _distinct_units(context):
        whole_seconds += _least_seconds(lambda u=unit, h=hidden, i=inputs: _forward(context, u, h, i))
        single_seconds += _least_seconds(lambda u=unit, h=hidden, i=inputs: _forward(context, u, h, i, one_sample_tiles=True))
    return max(1.0, single_seconds / whole_seconds) if whole_seconds else 1.0


def _distinct_units(context: RunContext) -> Iterator[tuple[int, nn.Module, torch.Tensor | None, Inputs]]:
    """(number, unit, its input, the micro-batch's inputs) of each unit before the last that differs in type or shapes.

    A unit stays on the device until the next one is requested.
    """
    size = context.micro_batch_size
    samples = [number % len(context.data.train) for number in range(size)]
    inputs = context.on_device(context.data.train.collate(samples, [0] * size))
    hidden = None
    for number, first in enumerate(first_of_its_kind(context.cut.units)[:-1]):
        if number == first:
            unit = context.cut.units[number]
            with lent_to(context.device, context.pieces.of_unit(number), unit, context.moments):
                entry, hidden = hidden, _forward(context, unit, hidden, inputs)
                yield number, unit, entry, inputs


def _arrangements(size: int) -> list[tuple[str, list[int]]]:
    """(name, order) of arrangements of samples; an order lists the sample at each place."""
    orders = [
        ("reversed", list(reversed(range(size)))),
        ("shifted by one", [(place + 1) % size for place in range(size)]),
        ("filled with one sample", [size - 1] * size),
        ("filled with two samples", [place % 2 for place in range(size)]),
    ]
    return [(name, order) for name, order in orders if order != list(range(size))]


def _forward(context: RunContext, unit: nn.Module, hidden: torch.Tensor | None, inputs: Inputs,
             one_sample_tiles: bool = False) -> torch.Tensor:  # fmt: skip
    """Compute one frozen unit as in a run; its mode and its trainable parameters are restored.

    Args:
        context: the run's model, on this worker.
        unit: the unit.
        hidden: the unit's input (samples, tokens, width); None for the embedding.
        inputs: the micro-batch's inputs.
        one_sample_tiles: whether samples are computed one by one.
    """
    settings = stage_settings(context, one_sample_tiles)
    training, learning = unit.training, [parameter.requires_grad for parameter in unit.parameters()]
    try:
        return Stage([unit], 0, 1, settings).run_frozen(hidden, inputs)
    finally:
        set_frozen(unit, False)
        unit.train(training)
        for parameter, learns in zip(unit.parameters(), learning, strict=True):
            parameter.requires_grad_(learns)


def _take(hidden: torch.Tensor | None, order: list[int]) -> torch.Tensor | None:
    return None if hidden is None else hidden[order]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers, so that NaNs can be compared."""
    return tensor.contiguous().view(torch.uint8)


def _misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that begins one element behind a 64-byte boundary; a tensor of another than a floating type unchanged."""
    if not tensor.is_floating_point() or tensor.ndim == 0:
        return tensor
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return memory[1:].view(tensor.shape).copy_(tensor)


class _swapped:
    """A context in which a unit's weights and buffers are replaced by other tensors of the same values."""

    def __init__(self, unit: nn.Module, state: dict[str, torch.Tensor]) -> None:
        own = {**dict(unit.named_parameters()), **dict(unit.named_buffers())}
        self._pairs = [(tensor, tensor.data, state[name]) for name, tensor in own.items() if name in state]

    def __enter__(self) -> None:
        for tensor, _, other in self._pairs:
            tensor.data = other

    def __exit__(self, *error: object) -> None:
        for tensor, before, _ in self._pairs:
            tensor.data = before


def _least_seconds(run: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(TIMED_TURNS):
        started = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - started)
    return least
