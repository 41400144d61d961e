"""Runs a schedule on one pipeline rank: receives, computes, sends.

Hidden activations travel downstream and their gradients upstream, one tensor each, between neighbouring stages. Where everything
upstream of a stage is frozen no gradient travels; a wholly frozen stage (between a freeze and the reshape that follows it) runs
forward only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from frostline_contract.shape import ParallelShape
from frostline_trainer.comm.collectives import Group, Message, wait_all
from frostline_trainer.engine.evidence import Digest, Evidence, digest_of
from frostline_trainer.engine.flaw import Flaw
from frostline_trainer.engine.gradients import GradientBuffers
from frostline_trainer.engine.schedules import Action
from frostline_trainer.engine.stage import Inputs, Stage

EnterBoundary = Callable[[torch.Tensor, list[int], int], torch.Tensor]
"""(boundary activations, samples, step) -> what the first unit that learns is given."""
Loss = Callable[[torch.Tensor, Inputs], torch.Tensor]
"""(the last stage's output, inputs) -> the micro-batch's share of the step's loss."""


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
    """losses: loss of each micro-batch by its number, on the rank that runs the last stage. evidence: of the audited micro-batch,
    by stage.
    """

    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    evidence: dict[int, Evidence] = field(default_factory=dict)


@dataclass
class _Passed:
    """A micro-batch after its forward through a stage. root: the loss in the last stage, else the output: where the backward
    begins. output: kept where a digest of it is wanted.
    """

    entry: torch.Tensor | None
    root: torch.Tensor
    output: torch.Tensor | None = None


class Pipeline:
    """One rank's part of a pipeline.

    stages: by stage number. buffers: gradient memory by stage number, for stages that learn. line: the replica's members,
    by pipeline rank.
    hidden_like: an empty tensor with a micro-batch's boundary shape, type and device.
    enter_boundary: what is done to the frozen prefix's output before the first unit that learns (an augmentation), or None.
    flaw: what is wrong with this processor, by plan.
    """

    def __init__(self, stages: dict[int, Stage], buffers: dict[int, GradientBuffers], shape: ParallelShape, line: Group,
                 hidden_like: torch.Tensor, enter_boundary: EnterBoundary | None, flaw: Flaw) -> None:  # fmt: skip
        self._enter_boundary, self._flaw = enter_boundary, flaw
        self._stages, self._buffers = stages, buffers
        self._shape, self._num_stages, self._line, self._hidden_like = shape, shape.num_stages, line, hidden_like
        self._sent: list[Message] = []

    def run(self, actions: list[Action], micro_batches: list[MicroBatch], step: int, loss: Loss,
            upstream_learns: Callable[[int], bool], audited: int | None = None) -> PipelineResult:  # fmt: skip
        """Run a step's actions. upstream_learns(stage): whether any unit before `stage` is trainable. audited: number of the
        micro-batch of which evidence is kept.
        """
        result = PipelineResult()
        kept: dict[tuple[int, int], _Passed] = {}
        for forward, stage_number, index in actions:
            stage, micro_batch = self._stages[stage_number], micro_batches[index]
            needs_gradient, is_audited = upstream_learns(stage_number), micro_batch.number == audited
            if forward:
                entry = self._entry(stage_number, micro_batch, needs_gradient)
                passed = self._pass(stage_number, entry, micro_batch, step, loss, is_audited)
                if stage_number == self._num_stages - 1:
                    result.losses[micro_batch.number] = passed.root.detach()
                else:
                    self._send(passed.root.detach(), stage_number + 1, micro_batch.number, downstream=True)
                if not stage.is_frozen:
                    kept[stage_number, index] = passed
                elif is_audited:
                    result.evidence[stage_number] = Evidence(entry, None, digest_of([passed.output]))
            elif not stage.is_frozen:
                passed = kept.pop((stage_number, index))
                evidence = self._backward(stage_number, micro_batch.number, passed, needs_gradient, is_audited)
                if evidence is not None:
                    result.evidence[stage_number] = evidence
        wait_all(self._sent)
        self._sent.clear()
        self._flaw.end_of_schedule()
        return result

    def again(self, stage_number: int, micro_batch: MicroBatch, evidence: Evidence, step: int, loss: Loss,
              needs_gradient: bool) -> Digest:  # fmt: skip
        """Compute what somebody has evidence of; nothing is sent and no sum changes. Between a schedule and the exchange."""
        stage, entry = self._stages[stage_number], evidence.entry
        if entry is not None:
            entry = entry.detach().requires_grad_(needs_gradient)
        passed = self._pass(stage_number, entry, micro_batch, step, loss, keep_output=True)
        if stage.is_frozen:
            return digest_of([passed.output])
        buffers = self._buffers[stage_number]
        apart = buffers.begin_apart()
        passed.root.backward(evidence.gradient)
        self._flaw.gradient(buffers.parameters)
        digest = self._digest(passed, buffers, apart, needs_gradient)
        buffers.release(apart)
        return digest

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
        self._line.receive(hidden, self._owner(stage_number - 1), self._tag(stage_number, micro_batch.number, downstream=True))
        return hidden.requires_grad_(needs_gradient)

    def _pass(self, stage_number: int, entry: torch.Tensor | None, micro_batch: MicroBatch, step: int, loss: Loss,
              keep_output: bool) -> _Passed:  # fmt: skip
        output = self._flaw.activation(self._forward(self._stages[stage_number], entry, micro_batch, step))
        root = loss(output, micro_batch.inputs) if stage_number == self._num_stages - 1 else output
        return _Passed(entry, root, output if keep_output else None)

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

    def _backward(self, stage_number: int, number: int, passed: _Passed, needs_gradient: bool, audited: bool) -> Evidence | None:
        buffers, gradient, apart = self._buffers[stage_number], None, None
        if audited:
            apart = buffers.begin_apart()
        else:
            buffers.before_backward(number)
        if stage_number < self._num_stages - 1:
            gradient = torch.empty_like(self._hidden_like)
            tag = self._tag(stage_number, number, downstream=False)
            self._line.receive(gradient, self._owner(stage_number + 1), tag)
        passed.root.backward(gradient)
        if needs_gradient:
            assert passed.entry is not None and passed.entry.grad is not None
            self._send(passed.entry.grad, stage_number - 1, number, downstream=False)
        self._flaw.gradient(buffers.parameters)
        if apart is None:
            buffers.after_backward(number)
            return None
        evidence = Evidence(passed.entry, gradient, self._digest(passed, buffers, apart, needs_gradient))
        buffers.join(number, apart)
        return evidence

    def _digest(self, passed: _Passed, buffers: GradientBuffers, apart: torch.Tensor, needs_gradient: bool) -> Digest:
        """Of all that comes out of a stage."""
        upstream = passed.entry.grad if needs_gradient and passed.entry is not None else None
        return digest_of([passed.output, passed.root, upstream, apart[: buffers.length]])

    def _send(self, tensor: torch.Tensor, to_stage: int, number: int, downstream: bool) -> None:
        self._sent.append(self._line.send(tensor, self._owner(to_stage), self._tag(to_stage, number, downstream)))

    def _owner(self, stage_number: int) -> int:
        return self._shape.pp_rank_of_stage(stage_number)

    def _tag(self, stage_number: int, number: int, downstream: bool) -> int:
        return (number * self._num_stages + stage_number) * 2 + downstream
