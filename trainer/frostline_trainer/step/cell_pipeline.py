"""A pipeline whose stages compute cells of tokens (`training.token_cells`) and send slices: several cells in one message."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from frostline_contract.operations import GIVES_INPUT_GRADIENT, GIVES_WEIGHT_GRADIENT, Kind
from frostline_trainer.replication.evidence import Digest, Evidence, digest_of
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.grid import Grid
from frostline_trainer.step.pipeline import Loss, MicroBatch, Pipeline, StepState, UpstreamLearns
from frostline_trainer.step.programs import Carried, Instruction, Message
from frostline_trainer.step.strand import Strand


class CellPipeline(Pipeline):
    """One rank's part of a pipeline over cells.

    If nothing upstream of a stage learns, the stage receives the whole micro-batch with the first slice.

    Args:
        grid: Bounds of the cells.
        slices: Number of cells in each slice, () for all in one.
        arguments: As for a Pipeline.
    """

    def __init__(self, grid: Grid, slices: Sequence[int], *arguments: Any) -> None:
        super().__init__(*arguments)
        counts = tuple(slices) or (len(grid) - 1,)
        assert sum(counts) == len(grid) - 1, f"slices {counts} do not hold {len(grid) - 1} cells"
        self._grid = grid
        self._slices = [range(low, high) for low, high in pairwise((0, *accumulate(counts)))]
        self._strands: dict[tuple[int, int], Strand] = {}
        self._digests: dict[int, list[torch.Tensor]] = {}

    def recompute(self, stage_number: int, micro_batch: MicroBatch, evidence: Evidence, step: int, loss: Loss,
                  needs_gradient: bool) -> Digest:  # fmt: skip
        stage = self._stages[stage_number]
        if stage.is_frozen:
            return super().recompute(stage_number, micro_batch, evidence, step, loss, needs_gradient)
        strand = self._strand(stage_number, micro_batch, step, loss, needs_gradient, keep=True)
        cells = range(len(self._grid) - 1)
        if not needs_gradient:
            strand.begin(evidence.entry, self._trainable_input(stage, evidence.entry, micro_batch, step))
        strand.forward(cells, evidence.entry if needs_gradient else None)
        if evidence.gradient is not None:
            strand.take_gradient(cells, evidence.gradient)
        buffers, digests = self._buffers[stage_number].fitting(), list[torch.Tensor]()
        for apart in self._apart(buffers, strand.addends(cells), digests, closes=True):
            buffers.release(apart)
        return digest_of([*strand.traces(), *digests])

    def abandon(self) -> None:
        super().abandon()
        self._strands.clear()
        self._digests.clear()

    def _receive_buffer(self, message: Message, upstream_learns: UpstreamLearns | None) -> torch.Tensor:
        whole = self._hidden_like
        if upstream_learns is None or (message.carried is Carried.ACTIVATION and not upstream_learns(message.stage)):
            return torch.empty_like(whole)
        cells = self._slices[message.slice]
        return whole.new_empty(whole.shape[0], self._grid[cells.stop] - self._grid[cells.start], whole.shape[2])

    def _strand(self, number: int, micro_batch: MicroBatch, step: int, loss: Loss, learns: bool, keep: bool) -> Strand:
        """The stage's strand of a micro-batch. learns: whether any unit upstream of the stage learns."""
        score = loss if number == self._last_stage else None
        place = (step, micro_batch.number)
        return Strand(self._stages[number], self._grid, micro_batch.inputs, place, score, learns, keep, self._plug.activation)

    def _run_forward(self, instruction: Instruction, state: StepState) -> None:
        """Run a slice's forward; with the first slice of a micro-batch, also what the stage computes on whole sequences."""
        number, micro_batch = instruction.stage, state.micro_batches[instruction.micro_batch]
        if self._stages[number].is_frozen:
            super()._run_forward(instruction, state)
            return
        place, learns = (number, instruction.micro_batch), state.upstream_learns(number)
        entry = self._stage_input(instruction, micro_batch) if learns or instruction.slice == 0 else None
        if instruction.slice == 0:
            keep = micro_batch.number == state.audited
            strand = self._strands[place] = self._strand(number, micro_batch, state.number, state.loss, learns, keep)
            if not learns:
                strand.begin(entry, self._trainable_input(self._stages[number], entry, micro_batch, state.number))
        found = self._strands[place].forward(self._slices[instruction.slice], entry if learns else None)
        if number == self._last_stage:
            state.result.losses[micro_batch.number] = found
        else:
            message = Message(Carried.ACTIVATION, number + 1, instruction.micro_batch, instruction.slice)
            self._messages.give(message, found)

    def _run_backward(self, instruction: Instruction, state: StepState) -> None:
        """Run a slice's backward, or one of its two parts; weight gradients are added to their leaf by cell, last to first."""
        kind, number, cells = instruction.kind, instruction.stage, self._slices[instruction.slice]
        place, learns = (number, instruction.micro_batch), state.upstream_learns(number)
        strand, micro_batch = self._strands[place], state.micro_batches[instruction.micro_batch]
        if kind in GIVES_INPUT_GRADIENT and number < self._last_stage:
            strand.take_gradient(cells, self._received(Carried.GRADIENT, instruction))
        if kind is Kind.INPUT_GRADIENT:
            strand.backward_input(cells, self._buffers[number].parameters)
        if kind in GIVES_WEIGHT_GRADIENT:
            self._backward_cells(number, micro_batch, strand, kind, cells, state)
        if kind in GIVES_INPUT_GRADIENT and learns:
            message = Message(Carried.GRADIENT, number - 1, instruction.micro_batch, instruction.slice)
            self._messages.give(message, strand.entry_gradient(cells))
        if kind in GIVES_WEIGHT_GRADIENT:
            strand.forget(cells)
            if cells.start == 0:
                del self._strands[place]

    def _backward_cells(
        self, number: int, micro_batch: MicroBatch, strand: Strand, kind: Kind, cells: range, state: StepState
    ) -> None:
        """Add a slice's weight gradients to the micro-batch's leaf; if it is audited, each is computed apart for its digest."""
        buffers, is_audited = self._buffers[number], micro_batch.number == state.audited
        addends = strand.addends(cells, buffers.parameters if kind is Kind.WEIGHT_GRADIENT else None)
        closes = cells.start == 0
        if is_audited:
            digests = self._digests.setdefault(number, [])
            for apart in self._apart(buffers, addends, digests, closes):
                buffers.add(micro_batch.number, apart)
        else:
            buffers.before_backward(micro_batch.number)
            for addend in addends:
                addend()
            if closes:
                self._plug.gradient(buffers.parameters)
        if not closes:
            return
        buffers.after_backward(micro_batch.number)
        if is_audited:
            digest = digest_of([*strand.traces(), *self._digests.pop(number)])
            state.result.evidence[number] = Evidence(strand.whole_entry(), strand.whole_gradient(), digest)

    def _apart(
        self, buffers: GradientBuffers, addends: Sequence[Callable[[], None]], digests: list[torch.Tensor], closes: bool
    ) -> Iterator[torch.Tensor]:
        """Compute each addend in a buffer of its own, append its digest to `digests` and yield the buffer to the caller."""
        for number, addend in enumerate(addends, 1):
            apart = buffers.begin_apart()
            addend()
            if closes and number == len(addends):
                self._plug.gradient(buffers.parameters)
            digests.append(torch.frombuffer(bytearray(digest_of([apart[: buffers.length]])), dtype=torch.uint8))
            yield apart
