"""Measured cost of each unit at the job's micro-batch size, for the planner (docs/design.md 7)."""

import time
from collections.abc import Callable, Sequence

import torch

from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_trainer.engine.context import RunContext

REPETITIONS_MIN, REPETITIONS_MAX, SECONDS_ENOUGH = 3, 30, 0.1
"""A unit is timed until either limit is reached: small ones take many turns, of which the fastest counts."""


def worker_profile(context: RunContext, known: Sequence[WorkerProfile]) -> WorkerProfile:
    """The run's profile of this kind of device, with this worker's memory; measured where the run has none.

    known: the run's, one a kind of device. The planner takes workers of one kind for equally fast, whatever each of them measured
    while it shared its machine with others: a joiner's own measurement would only keep it from joining.
    """
    device, size = _device_name(context), context.micro_batch_size
    for one in known:
        if (one.device, one.micro_batch_size, len(one.units)) == (device, size, context.num_units):
            return one.model_copy(update={"memory_bytes": _memory(context)})
    return profile_units(context)


def profile_units(context: RunContext) -> WorkerProfile:
    """Time forward and backward of each distinct unit (blocks of one shape are measured once) on the first samples."""
    size = context.micro_batch_size
    samples = list(range(min(size, len(context.data.train))))
    samples += [-1] * (size - len(samples))
    inputs = context.on_device(context.data.train.collate(samples, [0] * size))
    counts = context.task.loss_counts(context.data.train, samples)
    measured: dict[tuple, UnitProfile] = {}
    profiles, hidden = [], None
    for index, unit in enumerate(context.cut.units):
        unit.train().requires_grad_(True)
        last = index == context.num_units - 1
        kind = (type(unit), index == 0, last, tuple(p.shape for p in unit.parameters()))
        if kind not in measured:
            finish: Callable = (lambda out: context.task.loss(out, inputs, counts)) if last else torch.sum
            measured[kind], hidden = _measure(context, unit, hidden, inputs, finish)
        profiles.append(measured[kind])
    return WorkerProfile(
        micro_batch_size=size, units=tuple(profiles), device=_device_name(context), memory_bytes=_memory(context)
    )


def _measure(context: RunContext, unit: torch.nn.Module, hidden: torch.Tensor | None, inputs: dict, finish: Callable) -> tuple:
    forward, backward, output = [], [], hidden
    autocast = context.job.training.precision == "mixed_bfloat16"
    while len(forward) < REPETITIONS_MIN or (len(forward) < REPETITIONS_MAX and sum(forward) + sum(backward) < SECONDS_ENOUGH):
        entry = hidden.detach().requires_grad_() if hidden is not None else None
        started = _now(context)
        with torch.autocast(context.device.type, torch.bfloat16, enabled=autocast):
            output = unit(entry, inputs)
        middle = _now(context)
        finish(output).backward()
        ended = _now(context)
        forward.append(middle - started)
        backward.append(ended - middle)
    unit.zero_grad(set_to_none=True)
    parameters = sum(p.numel() * p.element_size() for p in unit.parameters())
    moments = 2 if context.job.training.optimizer.name == "adamw" else 1
    width = output.numel() * output.element_size()
    profile = UnitProfile(
        forward_seconds=min(forward),
        backward_seconds=min(backward),
        parameter_bytes=parameters,
        optimizer_bytes=moments * parameters,
        # A transformer block keeps about a dozen tensors of its output's size (two norms, qkv, attention, four MLP widths).
        activation_bytes=width * (16 if hidden is not None else 2),
        output_bytes=width,
    )
    return profile, output.detach()


def _now(context: RunContext) -> float:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    return time.perf_counter()


def _device_name(context: RunContext) -> str:
    return torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"


def _memory(context: RunContext) -> int:
    if context.job.placement.worker_memory_bytes:
        return context.job.placement.worker_memory_bytes
    if context.device.type == "cuda":
        return torch.cuda.get_device_properties(context.device).total_memory
    return 0
