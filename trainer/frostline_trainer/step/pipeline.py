"""The pipeline: runs a step's program on one pipeline rank (receives, computations, sends).

Neighbouring stages exchange one activation downstream and its gradient upstream for each micro-batch. If everything upstream of
a stage is frozen, no gradient is sent. A wholly frozen stage (between a freeze and the next reshape) runs forward only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from frostline_contract.operations import GIVES_INPUT_GRADIENT, Kind
from frostline_trainer.process.plug import Plug
from frostline_trainer.replication.evidence import Digest, Evidence, digest_of
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.chunks import Inputs, Score
from frostline_trainer.step.crossing import Crossing
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.programs import Carried, Instruction, Message
from frostline_trainer.step.saved_forward import SavedForward
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.tracing import NO_TRACE, Trace
from frostline_trainer.transport.transport import Transport

EnterBoundary = Callable[[torch.Tensor, list[int], int], torch.Tensor]
"""(boundary activations, samples, step) -> input of the first unit that learns."""
UpstreamLearns = Callable[[int], bool]
"""Stage number -> whether any unit before that stage is trainable."""
Loss = Score
"""(the last stage's output, inputs) -> the micro-batch's share of the step's loss."""


@dataclass
class MicroBatch:
    """A stage's data of one micro-batch, beside the hidden tensor.

    number: its number in the whole step. inputs: masks and labels (and raw samples for stage 0). samples: their indices, -1
    for padding. boundary: the frozen prefix's output, if stage 0 has it already (from the cache).
    """

    number: int
    inputs: Inputs
    samples: list[int] = field(default_factory=list)
    boundary: torch.Tensor | None = None


@dataclass
class PipelineResult:
    """The results of a step's program, beside gradients.

    losses: loss of each micro-batch by its number, on the rank that runs the last stage. evidence: of the audited micro-batch,
    by stage.
    """

    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    evidence: dict[int, Evidence] = field(default_factory=dict)


@dataclass
class StepState:
    """Arguments and results that all operations of one step share. number: the step's. audited: number of the micro-batch of
    which evidence is kept. saved: by stage and micro-batch, between its forward and the end of its backward.
    """

    number: int
    micro_batches: Sequence[MicroBatch]
    loss: Loss
    upstream_learns: UpstreamLearns
    audited: int | None = None
    result: PipelineResult = field(default_factory=PipelineResult)
    saved: dict[tuple[int, int], SavedForward] = field(default_factory=dict)


class Pipeline:
    """One rank's part of a pipeline.

    Args:
        stages: the rank's stages by number.
        buffers: gradient memory by stage number, for stages that learn.
        last_stage: number of the pipeline's last stage.
        transport: carries the messages of the replica's members.
        hidden_like: an empty tensor with a micro-batch's boundary shape, type and device.
        enter_boundary: applied to the frozen prefix's output before the first unit that learns (an augmentation), or None.
        plug: hook by which planned faults may change results.
    """

    def __init__(self, stages: dict[int, Stage], buffers: dict[int, GradientBuffers], last_stage: int, transport: Transport,
                 hidden_like: torch.Tensor, enter_boundary: EnterBoundary | None, plug: Plug) -> None:  # fmt: skip
        self._enter_boundary, self._plug = enter_boundary, plug
        self._stages, self._buffers = stages, buffers
        self._last_stage, self._hidden_like = last_stage, hidden_like
        self._messages = Crossing(stages, transport)
        self._trace: Trace = NO_TRACE

    def run(self, program: Sequence[Instruction], micro_batches: Sequence[MicroBatch], step: int, loss: Loss,
            upstream_learns: UpstreamLearns, audited: int | None = None, trace: Trace = NO_TRACE) -> PipelineResult:  # fmt: skip
        """Run the computations and messages of a step's program.

        micro_batches: the replica's, in the program's count. upstream_learns(stage): whether any unit before `stage` is
        trainable. audited: number of the micro-batch of which evidence is kept. trace: records when computations begin and end.
        """
        state, self._trace = StepState(step, micro_batches, loss, upstream_learns, audited), trace
        for instruction in program:
            if not self._start_transfer(instruction, upstream_learns):
                self._compute(instruction, state)
        self._trace = NO_TRACE
        self._messages.finish_sending()
        self._plug.end_of_schedule()
        return state.result

    def _start_transfer(self, instruction: Instruction, upstream_learns: UpstreamLearns | None) -> bool:
        """Start the instruction's send or receive; return False if the instruction is a computation.

        upstream_learns: None in an evaluation.
        """
        return self._messages.start(instruction, lambda message: self._receive_buffer(message, upstream_learns))

    def _receive_buffer(self, message: Message, upstream_learns: UpstreamLearns | None) -> torch.Tensor:
        """An empty receive buffer in the message's shape."""
        return torch.empty_like(self._hidden_like)

    def _compute(self, instruction: Instruction, state: StepState) -> None:
        """Run a forward, a backward, or one of a backward's two parts; its result is kept until the SEND that follows."""
        self._trace.begins()
        if instruction.kind is Kind.FORWARD:
            self._run_forward(instruction, state)
        else:
            self._run_backward(instruction, state)
        self._trace.ends(instruction)

    def _run_backward(self, instruction: Instruction, state: StepState) -> None:
        """Run a micro-batch's backward through a stage, or one of its two parts."""
        kind, number = instruction.kind, instruction.stage
        place, upstream_learns = (number, instruction.micro_batch), state.upstream_learns(number)
        saved, micro_batch = state.saved[place], state.micro_batches[instruction.micro_batch]
        if kind in GIVES_INPUT_GRADIENT and number < self._last_stage:
            saved.gradient = self._received(Carried.GRADIENT, instruction)
        if kind is Kind.INPUT_GRADIENT and upstream_learns:
            saved.backward_input(self._buffers[number].parameters, self._stages[number].settings.checkpointing)
        elif kind is not Kind.INPUT_GRADIENT:
            evidence = self._backward_weights(
                number, micro_batch.number, saved, kind, upstream_learns, micro_batch.number == state.audited
            )
            del state.saved[place]
            if evidence is not None:
                state.result.evidence[number] = evidence
        if kind in GIVES_INPUT_GRADIENT and upstream_learns:
            assert saved.entry is not None and saved.entry.grad is not None
            message = Message(Carried.GRADIENT, number - 1, instruction.micro_batch, instruction.slice)
            self._messages.give(message, saved.entry.grad)

    def recompute(self, stage_number: int, micro_batch: MicroBatch, evidence: Evidence, step: int, loss: Loss,
                  needs_gradient: bool) -> Digest:  # fmt: skip
        """Compute a stage's micro-batch once more for an audit; nothing is sent and no sum changes.

        It runs between a schedule and the exchange. evidence: from the member that computed the micro-batch in the step.
        """
        stage, entry = self._stages[stage_number], evidence.entry
        if entry is not None:
            entry = entry.detach().requires_grad_(needs_gradient)
        saved = self._forward_and_save(stage_number, entry, micro_batch, step, loss, keep_output=True)
        if stage.is_frozen:
            return digest_of([saved.output])
        buffers = self._buffers[stage_number].fitting()
        apart = buffers.begin_apart()
        saved.gradient = evidence.gradient
        if saved.root.requires_grad:
            saved.backward()
        self._plug.gradient(buffers.parameters)
        digest = self._digest(saved, buffers, apart, needs_gradient)
        buffers.release(apart)
        return digest

    def abandon(self) -> None:
        """Drop messages under way, so that the transport's sockets can close."""
        self._messages.abandon()

    def evaluate(self, program: Sequence[Instruction], micro_batch: MicroBatch, score: Score) -> torch.Tensor | None:
        """Run one tile forward in eval mode. Returns the value of `score` on the rank that has the logits, None on others."""
        output = None
        with torch.no_grad():
            for instruction in program:
                if self._start_transfer(instruction, None):
                    continue
                number = instruction.stage
                stage, entry = self._stages[number], self._stage_input(instruction, micro_batch)
                with stage.evaluating():
                    output = self._forward(stage, entry, micro_batch, 0, score if number == self._last_stage else None)
                if number < self._last_stage:
                    message = Message(Carried.ACTIVATION, number + 1, instruction.micro_batch, instruction.slice)
                    self._messages.give(message, output)
                    output = None
        self._messages.finish_sending()
        return output

    @property
    def gathered_bytes(self) -> int:
        """The most bytes of weights that a gather has held; 0 without gathers."""
        return 0

    def attend(self, program: Sequence[Instruction], times: int) -> None:
        """Take part in the gathers of that many evaluations which only other replicas run; does nothing without gathers."""

    def _received(self, carried: Carried, instruction: Instruction) -> torch.Tensor:
        """The activation or gradient that a computation needs, whose time begins when it has arrived."""
        message = Message(carried, instruction.stage, instruction.micro_batch, instruction.slice)
        is_here = self._messages.is_here(message)
        tensor = self._messages.take(message)
        if not is_here:
            self._trace.begins()
        return tensor

    def _stage_input(self, instruction: Instruction, micro_batch: MicroBatch) -> torch.Tensor | None:
        """The stage's input: None for raw samples, the cached boundary, or the activation of the previous stage."""
        return micro_batch.boundary if instruction.stage == 0 else self._received(Carried.ACTIVATION, instruction)

    def _run_forward(self, instruction: Instruction, state: StepState) -> None:
        """Run a micro-batch's forward through a stage; if the stage learns, its tensors are kept for the backward."""
        number, micro_batch = instruction.stage, state.micro_batches[instruction.micro_batch]
        is_audited = micro_batch.number == state.audited
        entry = self._stage_input(instruction, micro_batch)
        if entry is not None and number > 0:
            entry.requires_grad_(state.upstream_learns(number))
        saved = self._forward_and_save(number, entry, micro_batch, state.number, state.loss, is_audited)
        if number == self._last_stage:
            state.result.losses[micro_batch.number] = saved.root.detach()
        else:
            message = Message(Carried.ACTIVATION, number + 1, instruction.micro_batch, instruction.slice)
            self._messages.give(message, saved.root.detach())
        if not self._stages[number].is_frozen:
            state.saved[number, instruction.micro_batch] = saved
        elif is_audited:
            state.result.evidence[number] = Evidence(entry, None, digest_of([saved.output]))

    def _forward_and_save(self, stage_number: int, entry: torch.Tensor | None, micro_batch: MicroBatch, step: int, loss: Loss,
                          keep_output: bool) -> SavedForward:  # fmt: skip
        """Run a micro-batch's forward through a stage, with the loss in the last one; return the tensors that backward needs."""
        stage = self._stages[stage_number]
        if stage_number == self._last_stage and stage.settings.chunk_tokens:
            return SavedForward(entry, self._plug.activation(self._forward(stage, entry, micro_batch, step, loss)))
        output = self._plug.activation(self._forward(stage, entry, micro_batch, step))
        root = loss(output, micro_batch.inputs) if stage_number == self._last_stage else output
        return SavedForward(entry, root, output if keep_output and stage.is_evidence(stage_number == self._last_stage) else None)

    def _forward(self, stage: Stage, entry: torch.Tensor | None, micro_batch: MicroBatch, step: int,
                 score: Score | None = None) -> torch.Tensor:  # fmt: skip
        hidden = self._trainable_input(stage, entry, micro_batch, step)
        if stage.is_frozen:
            assert hidden is not None
            return hidden
        return self._run_trainable(stage, hidden, micro_batch.inputs, step, micro_batch.number, score)

    def _run_trainable(self, stage: Stage, hidden: torch.Tensor | None, inputs: Inputs, step: int, number: int,
                       score: Score | None) -> torch.Tensor:  # fmt: skip
        """Run the units of a stage that learn, without keeping more than autograd does."""
        return stage.run_trainable(hidden, inputs, step, number, score)

    def _trainable_input(
        self, stage: Stage, entry: torch.Tensor | None, micro_batch: MicroBatch, step: int
    ) -> torch.Tensor | None:
        """The input of the stage's first unit that learns, behind frozen units and augmentation. None for an embedding."""
        hidden, rows = entry, stage.entered_rows
        if stage.num_frozen and micro_batch.boundary is None:
            hidden = stage.run_frozen(hidden, micro_batch.inputs)
        if stage.num_frozen and rows.are_divided:
            assert hidden is not None
            hidden = aligned(rows.own(hidden).contiguous())
        if stage.starts_learning and self._enter_boundary is not None and step > 0:
            assert hidden is not None
            hidden = self._enter_boundary(hidden, rows.own(micro_batch.samples), step)
        return hidden

    def _backward_weights(
        self, stage_number: int, number: int, saved: SavedForward, kind: Kind, upstream_learns: bool, audited: bool
    ) -> Evidence | None:
        """Compute the weights' gradients and add them to their leaf; if the backward is not split, the input's gradient too."""
        buffers, apart = self._buffers[stage_number], None
        if audited:
            apart = buffers.begin_apart()
        else:
            buffers.before_backward(number)
        inputs = buffers.parameters if kind is Kind.WEIGHT_GRADIENT else None
        # There is no graph if only other stages have adapters, and nothing upstream of this stage learns.
        if not saved.close_split() and saved.root.requires_grad and (inputs is None or inputs):
            saved.backward(inputs)
        self._plug.gradient(buffers.parameters)
        if apart is None:
            buffers.after_backward(number)
            return None
        evidence = Evidence(saved.entry, saved.gradient, self._digest(saved, buffers, apart, upstream_learns))
        buffers.join(number, apart)
        return evidence

    def _digest(self, saved: SavedForward, buffers: GradientBuffers, apart: torch.Tensor, needs_gradient: bool) -> Digest:
        """The digest of all tensors that a stage gives: output, loss, its input's gradient, its weights' gradients."""
        upstream = saved.entry.grad if needs_gradient and saved.entry is not None else None
        return digest_of([saved.output, saved.root, upstream, apart[: buffers.length]])
