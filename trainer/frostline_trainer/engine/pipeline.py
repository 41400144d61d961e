"""Runs a schedule on one pipeline rank: receives, computes, sends.

Hidden activations travel downstream and their gradients upstream, one tensor each, between neighbouring stages. Where everything
upstream of a stage is frozen no gradient travels; a wholly frozen stage (between a freeze and the reshape that follows it) runs
forward only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from frostline_trainer.comm.collectives import Group, Message, wait_all
from frostline_trainer.engine.gradients import GradientBuffers
from frostline_trainer.engine.schedules import Action
from frostline_trainer.engine.stage import Inputs, Stage

EnterBoundary = Callable[[torch.Tensor, list[int], int], torch.Tensor]
"""(boundary activations, samples, step) -> what the first unit that learns is given."""


@dataclass
class MicroBatch:
    """What a stage needs of one micro-batch beside the hidden tensor.

    number: its number in the whole step. inputs: masks and labels (and raw samples for stage 0). samples: which they are, -1
    for padding. boundary: the frozen prefix's output where stage 0 has it already (from the cache).
    """

    number: int
    inputs: Inputs
    samples: list[int] = field(default_factory=list)
    boundary: torch.Tensor | None = None


@dataclass
class PipelineResult:
    """losses: loss of each micro-batch by its number, on the rank that runs the last stage."""

    losses: dict[int, torch.Tensor] = field(default_factory=dict)


class Pipeline:
    """One rank's part of a pipeline.

    stages: by stage number. buffers: gradient memory by stage number, for stages that learn. row: the replica's members.
    hidden_like: an empty tensor with a micro-batch's boundary shape, type and device.
    enter_boundary: what is done to the frozen prefix's output before the first unit that learns (an augmentation), or None.
    """

    def __init__(self, stages: dict[int, Stage], buffers: dict[int, GradientBuffers], num_stages: int, row: Group,
                 hidden_like: torch.Tensor, enter_boundary: EnterBoundary | None = None) -> None:  # fmt: skip
        self._enter_boundary = enter_boundary
        self._stages, self._buffers = stages, buffers
        self._num_stages, self._row, self._hidden_like = num_stages, row, hidden_like
        self._sent: list[Message] = []

    def run(self, actions: list[Action], micro_batches: list[MicroBatch], step: int, loss: Callable[..., torch.Tensor],
            upstream_learns: Callable[[int], bool]) -> PipelineResult:  # fmt: skip
        """Run a step's actions. upstream_learns(stage): whether any unit before `stage` is trainable."""
        result = PipelineResult()
        kept: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor]] = {}
        for forward, stage_number, index in actions:
            stage, micro_batch = self._stages[stage_number], micro_batches[index]
            needs_gradient = upstream_learns(stage_number)
            if forward:
                entry = self._entry(stage_number, micro_batch, needs_gradient)
                output = self._forward(stage, entry, micro_batch, step)
                if stage_number == self._num_stages - 1:
                    output = loss(output, micro_batch.inputs)
                    result.losses[micro_batch.number] = output.detach()
                else:
                    self._send(output.detach(), stage_number + 1, micro_batch.number, downstream=True)
                if not stage.is_frozen:
                    kept[stage_number, index] = (entry if needs_gradient else None, output)
            elif not stage.is_frozen:
                self._backward(stage_number, micro_batch.number, *kept.pop((stage_number, index)))
        wait_all(self._sent)
        self._sent.clear()
        return result

    def abandon(self) -> None:
        """Forget messages under way, so that the group's sockets can close."""
        self._sent.clear()

    def evaluate(self, micro_batch: MicroBatch) -> torch.Tensor | None:
        """Forward only, in eval mode, of one tile. Returns the last stage's output on the rank that runs it."""
        output = None
        with torch.no_grad():
            for stage_number in sorted(self._stages):
                stage = self._stages[stage_number]
                entry = self._entry(stage_number, micro_batch, needs_gradient=False)
                with stage.evaluating():
                    output = self._forward(stage, entry, micro_batch, step=0)
                if stage_number < self._num_stages - 1:
                    self._send(output, stage_number + 1, micro_batch.number, downstream=True)
                    output = None
        wait_all(self._sent)
        self._sent.clear()
        return output

    def _entry(self, stage_number: int, micro_batch: MicroBatch, needs_gradient: bool) -> torch.Tensor | None:
        """The stage's input: None for raw samples, the cached boundary, or what the previous stage sends."""
        if stage_number == 0:
            return micro_batch.boundary
        hidden = torch.empty_like(self._hidden_like)
        self._row.receive(hidden, self._owner(stage_number - 1), self._tag(stage_number, micro_batch.number, downstream=True))
        return hidden.requires_grad_(needs_gradient)

    def _forward(self, stage: Stage, entry: torch.Tensor | None, micro_batch: MicroBatch, step: int) -> torch.Tensor:
        hidden = entry
        if stage.num_frozen and micro_batch.boundary is None:
            hidden = stage.run_frozen(hidden, micro_batch.inputs)
        if stage.is_frozen:
            assert hidden is not None
            return hidden
        if stage.starts_learning and self._enter_boundary is not None and step > 0:
            assert hidden is not None
            hidden = self._enter_boundary(hidden, micro_batch.samples, step)
        return stage.run_trainable(hidden, micro_batch.inputs, step, micro_batch.number)

    def _backward(self, stage_number: int, number: int, entry: torch.Tensor | None, output: torch.Tensor) -> None:
        buffers = self._buffers[stage_number]
        buffers.before_backward(number)
        if stage_number == self._num_stages - 1:
            output.backward()
        else:
            gradient = torch.empty_like(self._hidden_like)
            tag = self._tag(stage_number, number, downstream=False)
            self._row.receive(gradient, self._owner(stage_number + 1), tag)
            output.backward(gradient)
        if entry is not None:
            assert entry.grad is not None
            self._send(entry.grad, stage_number - 1, number, downstream=False)
        buffers.after_backward(number)

    def _send(self, tensor: torch.Tensor, to_stage: int, number: int, downstream: bool) -> None:
        self._sent.append(self._row.send(tensor, self._owner(to_stage), self._tag(to_stage, number, downstream)))

    def _owner(self, stage_number: int) -> int:
        return stage_number % self._row.size

    def _tag(self, stage_number: int, number: int, downstream: bool) -> int:
        return (number * self._num_stages + stage_number) * 2 + downstream
