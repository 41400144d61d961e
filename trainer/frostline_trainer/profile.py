"""Measures the cost of each unit at the job's micro-batch size, for the planner (docs/design.md 7).

One unit at a time is on the device, since a model that needs a pipeline would not fit there as a whole.

A worker with a CPU quota (placement.worker_cpus) measures with a clock of its own (`device_clock.QuotaClock`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from frostline_contract.cpu_groups import own_period_seconds
from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_trainer.data.split import first_samples
from frostline_trainer.families.base import learnable
from frostline_trainer.memory import metered
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.chunks import Inputs
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.device_clock import HostClock, HostMark, quota_clock_of
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.one_unit import OneUnit
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.unit_kinds import first_of_its_kind
from frostline_trainer.step.unit_state import lent_to
from frostline_trainer.update_cost import Update

log = logging.getLogger(__name__)

REPETITIONS_MIN, REPETITIONS_MAX, SECONDS_ENOUGH = 3, 30, 0.1
"""Limits of timing a unit or its update, in repetitions and seconds of computing, whichever is reached first."""


def worker_profile(context: RunContext, known: Sequence[WorkerProfile]) -> WorkerProfile:
    """The run's profile of this kind of device, with this worker's memory; measured now if the run has none.

    The planner treats workers with the same kind of device as equally fast, since their own measurements depend on other load of
    their machines. So a joiner does not measure again, which would only delay it.

    known: the run's profiles, one for each kind of device.
    """
    device, size = _device_name(context), context.micro_batch_size
    for one in known:
        if (one.device, one.micro_batch_size, len(one.units)) == (device, size, context.num_units):
            return one.model_copy(update={"memory_bytes": _memory(context)})
    started = time.monotonic()
    measured = profile_units(context)
    log.info("measured %d units in %.2f s", context.num_units, time.monotonic() - started)
    return measured


def profile_units(context: RunContext, clock: Callable[[], float] = time.perf_counter) -> WorkerProfile:
    """Measure time and memory of each distinct unit (blocks of one shape once) on the first samples. clock: in seconds."""
    measuring = _Measuring(context, clock)
    measured: dict[int, UnitProfile] = {}
    updates: dict[int, float] = {}
    kinds = first_of_its_kind(context.cut.units)
    for index, first in enumerate(kinds):
        if index == first:
            with lent_to(context.device, context.pieces.of_unit(index), context.cut.units[index], context.moments):
                measured[index], updates[index] = measuring.measure(index), measuring.update(index)
    units = tuple(measured[first] for first in kinds)
    learning = sum(unit.gradient_bytes for unit in units)
    return WorkerProfile(
        micro_batch_size=context.micro_batch_size,
        units=units,
        device=_device_name(context),
        memory_bytes=_memory(context),
        optimizer_seconds_per_byte=sum(updates[first] for first in kinds) / learning if learning else 0.0,
        quota_period_seconds=own_period_seconds() if context.device.type == "cpu" else 0.0,
    )


@dataclass
class _Turn:
    """One forward and backward: seconds of each, bytes kept between them, and the peak of bytes beyond these."""

    forward: float
    backward: float
    kept_bytes: int = 0
    working_bytes: int = 0
    output: torch.Tensor | None = None


@dataclass
class _Parts:
    """A split backward: seconds of its two parts, and bytes kept between them in addition to those of the forward."""

    input_seconds: float
    weight_seconds: float
    kept_bytes: int


class _Measuring:
    """Runs units on one micro-batch of real samples, as a stage runs them."""

    def __init__(self, context: RunContext, clock: Callable[[], float]) -> None:
        self._context = context
        quota = quota_clock_of(context.job, context.device)
        self._clock = quota or HostClock(clock)
        self._enough = max(SECONDS_ENOUGH, quota.lasts(SECONDS_ENOUGH)) if quota is not None else SECONDS_ENOUGH
        samples = first_samples(context.data.train, context.micro_batch_size)
        self._inputs: Inputs = context.on_device(context.data.train.collate(samples, [0] * len(samples)))
        self._counts = context.task.loss_counts(context.data.train, samples)
        self._hidden: torch.Tensor | None = None

    def measure(self, index: int) -> UnitProfile:
        """Measure the unit, which must be on the device, and keep its output for the next one."""
        context, unit = self._context, self._context.cut.units[index]
        stage = Stage([unit], index, 0, stage_settings(context))
        learning = list(learnable(unit).values())
        buffers = GradientBuffers([(index, learning)], num_microbatches=1, num_leaves=1)
        gradient = buffers.begin_apart()
        turns, in_parts, is_head = list[_Turn](), list[_Parts](), index == context.num_units - 1
        splits = self._entry() is not None and bool(learning)  # the first unit has no entry
        while self._more(len(turns), sum(turn.forward + turn.backward for turn in turns)):
            turns.append(self._turn(stage, is_head, weighed=False))
            if splits:  # in turns with the whole backward, which it is compared with, since a machine's speed changes
                in_parts.append(self._turn_in_parts(stage, is_head, learning))
        weighed = self._turn(stage, is_head, weighed=True)
        cells = self._cell_seconds(stage, is_head)
        parts = self._split(in_parts, stage, is_head, learning) if splits else _Parts(0.0, 0.0, 0)
        buffers.release(gradient)
        buffers.give_back()
        if not is_head:
            self._hidden = weighed.output
        parameters, gradients = _bytes_of(unit.parameters()), _bytes_of(learning)
        boundary = context.hidden_like()
        return UnitProfile(
            forward_seconds=self._clock.of_turns([turn.forward for turn in turns]),
            backward_seconds=(backward := self._clock.of_turns([turn.backward for turn in turns])),
            parameter_bytes=parameters,
            optimizer_bytes=(2 if context.job.training.optimizer.name == "adamw" else 1) * gradients,
            activation_bytes=weighed.kept_bytes,
            output_bytes=boundary.numel() * boundary.element_size(),
            working_bytes=weighed.working_bytes,
            still_bytes=parameters - gradients,
            cell_forward_seconds=cells[0],
            cell_backward_seconds=cells[1],
            input_gradient_cost=parts.input_seconds / backward if backward else 0.0,
            weight_gradient_cost=parts.weight_seconds / backward if backward else 0.0,
            split_bytes=parts.kept_bytes,
        )

    def _more(self, repetitions: int, seconds: float) -> bool:
        """Whether work that was measured so often, for so long in all, is measured once more."""
        return repetitions < REPETITIONS_MIN or (repetitions < REPETITIONS_MAX and seconds < self._enough)

    def _split(self, turns: Sequence[_Parts], stage: Stage, is_head: bool, learning: Sequence[nn.Parameter]) -> _Parts:
        """A split backward: its seconds by several turns, and the bytes that it keeps, by one more."""
        with metered(self._context.device) as meter:
            run, output = self._forward(stage, self._entry(), is_head)
            kept = meter.now
            run.backward_input(None if is_head else torch.ones_like(output), learning)
            more = meter.now - kept
            run.backward_weights(learning)
        into, weights = [one.input_seconds for one in turns], [one.weight_seconds for one in turns]
        return _Parts(self._clock.of_turns(into), self._clock.of_turns(weights), max(0, more))

    def _turn_in_parts(self, stage: Stage, is_head: bool, learning: Sequence[nn.Parameter]) -> _Parts:
        run, output = self._forward(stage, self._entry(), is_head)
        gradient, started = None if is_head else torch.ones_like(output), self._now()
        run.backward_input(gradient, learning)
        middle, between = self._since(started), self._now()
        run.backward_weights(learning)
        return _Parts(middle, self._since(between), 0)

    def _cell_seconds(self, stage: Stage, is_head: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of (forward, backward) of each cell of the grid, from several turns; empty without cells."""
        if not self._run(stage, self._entry(), is_head).has_cells:
            return (), ()
        turns = [self._cell_turn(stage, is_head) for _ in range(REPETITIONS_MIN)]
        forward, backward = (tuple(map(self._clock.of_turns, zip(*sides, strict=True))) for sides in zip(*turns, strict=True))
        return forward, backward

    def _cell_turn(self, stage: Stage, is_head: bool) -> tuple[list[float], list[float]]:
        run, marks = self._run(stage, self._entry(), is_head), [self._now()]
        output = run.forward_by_cell(lambda: marks.append(self._now()))
        gradient, back = None if is_head else torch.ones_like(output), [self._now()]
        run.backward(gradient, lambda: back.append(self._now()))
        forward, backward = ([self._clock.seconds(*pair) for pair in pairwise(times)] for times in (marks, back))
        return forward, backward[::-1]

    def update(self, index: int) -> float:
        """Seconds of an update of the unit's weights, measured on copies."""
        context = self._context
        learning = list(learnable(context.cut.units[index]).values())
        if not learning:
            return 0.0
        update, turns = Update(context.job.training.optimizer, learning), list[float]()
        update()  # creates the moments
        while self._more(len(turns), sum(turns)):
            started = self._now()
            update()
            turns.append(self._since(started))
        return self._clock.of_turns(turns) * _bytes_of(learning) / update.weight_bytes

    def _turn(self, stage: Stage, is_head: bool, weighed: bool) -> _Turn:
        entry = self._entry()
        if not weighed:
            started = self._now()
            run, output = self._forward(stage, entry, is_head)
            forward, middle = self._since(started), self._now()
            run.backward(None if is_head else torch.ones_like(output))
            return _Turn(forward, self._since(middle))
        with metered(self._context.device) as meter:
            run, output = self._forward(stage, entry, is_head)
            kept = meter.now
            run.backward(None if is_head else torch.ones_like(output))
            return _Turn(0.0, 0.0, kept, meter.peak - kept, output)

    def _forward(self, stage: Stage, entry: torch.Tensor | None, is_head: bool) -> tuple[OneUnit, torch.Tensor]:
        """Run a forward. Returns the unit's computation, ready for the backward, and its output or loss."""
        run = self._run(stage, entry, is_head)
        return run, run.forward()

    def _run(self, stage: Stage, entry: torch.Tensor | None, is_head: bool) -> OneUnit:
        return OneUnit(stage, self._inputs, entry, self._loss if is_head else None, self._context.grid)

    def _entry(self) -> torch.Tensor | None:
        """The output of the previous unit; None for the first one."""
        return self._hidden.detach().requires_grad_() if self._hidden is not None else None

    def _loss(self, logits: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return self._context.task.loss(logits, inputs, self._counts)

    def _now(self) -> HostMark:
        if self._context.device.type == "cuda" and torch.cuda.is_available():
            torch.cuda.synchronize(self._context.device)
        return self._clock.mark()

    def _since(self, started: HostMark) -> float:
        return self._clock.seconds(started, self._now())


def _bytes_of(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _device_name(context: RunContext) -> str:
    return torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"


def _memory(context: RunContext) -> int:
    """Bytes that this worker may use: the job's limit, else the device's memory without the context and other processes."""
    if context.job.placement.worker_memory_bytes:
        return context.job.placement.worker_memory_bytes
    if context.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(context.device)
        return free + torch.cuda.memory_reserved(context.device)
    return 0
