"""A pipeline whose stages gather each unit's weights before its forward and before its backward (`placement.shard: use`).

A stage that learns is computed unit by unit, each with a graph of its own, as if the model were cut before every unit; no cut
changes a bit. So gathers are called between computations, in the order of the program. For a micro-batch that only other replicas
have, the program has a GATHER in place of each computation, which makes the same gathers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from frostline_contract.operations import Kind
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.chunks import Inputs, Score
from frostline_trainer.step.gathering import Gathering
from frostline_trainer.step.pipeline import Loss, MicroBatch, Pipeline, PipelineResult, StepState
from frostline_trainer.step.programs import Instruction
from frostline_trainer.step.saved_forward import SavedForward
from frostline_trainer.step.split_backward import SplitBackward
from frostline_trainer.step.stage import Stage


@dataclass
class _UnitForward:
    """A unit's forward. unit: its number. entry: its input, a leaf of its graph behind the stage's first unit that learns.
    weights: those that learn. split: set if the input's gradient was computed ahead of the weights'."""

    unit: int
    entry: torch.Tensor | None
    output: torch.Tensor
    weights: list[nn.Parameter]
    split: SplitBackward | None = None


@dataclass
class _SavedUnits(SavedForward):
    """What a stage keeps of its units that learn, in order; each is gathered for its part of the backward."""

    gathering: Gathering | None = None
    units: list[_UnitForward] = field(default_factory=list)

    def backward(self, inputs: Sequence[torch.Tensor] | None = None) -> None:
        root, gradient = self.root, self.gradient
        for one in self._last_first():
            if root.requires_grad:  # else nothing learns up to here: blocks before the first one with adapters
                torch.autograd.backward(root, gradient)
            if self.units:
                root = self.units[-1].output
                gradient = _passed_on(one) if root.requires_grad else None

    def backward_input(self, weights: Sequence[nn.Parameter], recomputes: bool) -> None:
        root, gradient, kept = self.root, self.gradient, list(self.units)
        for one in self._last_first():
            assert one.entry is not None
            one.split = SplitBackward(root, gradient, one.entry, one.weights, recomputes)
            if self.units:
                root, gradient = self.units[-1].output, _passed_on(one)
        self.units = kept

    def close_split(self) -> bool:
        if not self.units or self.units[-1].split is None:
            return False
        for one in self._last_first():
            assert one.split is not None
            one.split.close()
        return True

    def _last_first(self) -> Iterator[_UnitForward]:
        """Take the units off, last first, each gathered."""
        assert self.gathering is not None
        while self.units:
            one = self.units.pop()
            self.gathering.use(one.unit)
            yield one


def uses(kind: Kind, stage: Stage, upstream_learns: bool) -> list[int]:
    """Places within the stage of the units that a computation gathers, in order."""
    places = list(range(stage.num_frozen, len(stage.units)))
    if kind is Kind.FORWARD:
        return places
    if kind is Kind.INPUT_GRADIENT and not upstream_learns:
        return []
    return places[::-1]


class GatheringPipeline(Pipeline):
    """One rank's part of a pipeline with gathers.

    Args:
        gathering: of the rank's units that learn.
        arguments: As for a Pipeline.
    """

    def __init__(self, gathering: Gathering, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gathering = gathering

    def run(self, *arguments: Any, **named: Any) -> PipelineResult:
        result = super().run(*arguments, **named)
        self.gathering.free()
        return result

    def recompute(self, stage_number: int, *arguments: Any) -> bytes:
        digest = super().recompute(stage_number, *arguments)
        self.gathering.free()
        return digest

    def evaluate(self, program: Sequence[Instruction], micro_batch: MicroBatch, score: Score) -> torch.Tensor | None:
        output = super().evaluate(program, micro_batch, score)
        self.gathering.free()
        return output

    @property
    def gathered_bytes(self) -> int:
        return self.gathering.most_bytes

    def attend(self, program: Sequence[Instruction], times: int) -> None:
        for _ in range(times):
            for instruction in program:
                if instruction.kind is Kind.FORWARD:
                    self._gather_all(Kind.FORWARD, instruction.stage, upstream_learns=False)
            self.gathering.free()

    def _compute(self, instruction: Instruction, state: StepState) -> None:
        if instruction.kind is not Kind.GATHER:
            super()._compute(instruction, state)
            return
        assert instruction.of is not None
        self._gather_all(instruction.of, instruction.stage, state.upstream_learns(instruction.stage))

    def _gather_all(self, kind: Kind, number: int, upstream_learns: bool) -> None:
        """Make the gathers of a computation that only other replicas have."""
        stage = self._stages[number]
        for place in uses(kind, stage, upstream_learns):
            self.gathering.use(stage.first_unit + place)

    # ---- unit by unit

    def _run_units(self, stage: Stage, hidden: torch.Tensor | None, inputs: Inputs, step: int, number: int,
                   score: Score | None = None) -> list[_UnitForward]:  # fmt: skip
        """Run the units that learn forward. score: applied by the last one."""
        found = list[_UnitForward]()
        for place in uses(Kind.FORWARD, stage, upstream_learns=False):
            self.gathering.use(stage.first_unit + place)
            if found:
                assert hidden is not None
                hidden = hidden.detach().requires_grad_(hidden.requires_grad)
            is_last = place == len(stage.units) - 1
            output = stage.run_trainable(hidden, inputs, step, number, score if is_last else None, range(place, place + 1))
            weights = [parameter for parameter in stage.units[place].parameters() if parameter.requires_grad]
            found.append(_UnitForward(stage.first_unit + place, hidden, output, weights))
            hidden = output
        return found

    def _run_trainable(self, stage: Stage, hidden: torch.Tensor | None, inputs: Inputs, step: int, number: int,
                       score: Score | None) -> torch.Tensor:  # fmt: skip
        return self._run_units(stage, hidden, inputs, step, number, score)[-1].output

    def _forward_and_save(self, stage_number: int, entry: torch.Tensor | None, micro_batch: MicroBatch, step: int, loss: Loss,
                          keep_output: bool) -> SavedForward:  # fmt: skip
        stage = self._stages[stage_number]
        if stage.is_frozen:
            return super()._forward_and_save(stage_number, entry, micro_batch, step, loss, keep_output)
        is_last = stage_number == self._last_stage
        in_chunks = is_last and bool(stage.settings.chunk_tokens)
        hidden = self._trainable_input(stage, entry, micro_batch, step)
        score = loss if in_chunks else None
        units = self._run_units(stage, hidden, micro_batch.inputs, step, micro_batch.number, score)
        output = self._plug.activation(units[-1].output)
        root = loss(output, micro_batch.inputs) if is_last and not in_chunks else output
        keep_output = keep_output and not in_chunks and stage.is_evidence(is_last)
        return _SavedUnits(entry, root, output if keep_output else None, gathering=self.gathering, units=units)


def _passed_on(one: _UnitForward) -> torch.Tensor:
    """The gradient of a unit's input, as it would come from another stage: contiguous, in aligned memory."""
    assert one.entry is not None and one.entry.grad is not None
    return aligned(one.entry.grad.contiguous())
