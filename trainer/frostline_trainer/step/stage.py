"""A stage: consecutive units that one pipeline rank runs.

Frozen units run forward only, in eval mode. The others draw their random numbers from a seed for each unit and micro-batch.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from frostline_contract.seeds import seed_of
from frostline_trainer.families.cells import Cell
from frostline_trainer.model import set_frozen
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.chunks import Inputs, Score, cut_tokens, sum_over_chunks
from frostline_trainer.step.compiling import Runner, compiled
from frostline_trainer.step.precision import Precision
from frostline_trainer.tensor.rows import WHOLE, Rows, gathered, own_samples, row_tiles


@dataclass(frozen=True)
class StageSettings:
    """The numerics of a forward that all stages share.

    Attributes:
        seed: The job's.
        dropout: Whether any unit draws random numbers.
        checkpointing: Activation checkpointing: keep only each unit's input and recompute the rest in the backward.
        precision: Types of numbers. The output of every unit but the head (unit num_units - 1) is rounded to the boundary type.
        device: Where the units are.
        one_sample_tiles: Frozen units compute one sample at a time, for machines whose kernels give a sample other bits at
            another place of its tile; by default they compute whole micro-batches.
        codec_chain: Units below the freeze point whose input goes through encode and decode of a lossy codec, which is part of
            the function that the prefix computes (docs/protocols.md 1.6).
        round_trip: That encode and decode; None without a lossy codec.
        compiled: Whether units run compiled.
        chunk_tokens: Tokens of each sample for which head and loss are computed at once; 0: all.
        tiled_logits: Whether a worker may compute the logits of some tiles of the vocabulary alone.
    """

    seed: int
    dropout: bool
    checkpointing: bool
    precision: Precision
    num_units: int
    device: torch.device
    one_sample_tiles: bool = False
    codec_chain: tuple[int, ...] = ()
    round_trip: Callable[[torch.Tensor], torch.Tensor] | None = None
    compiled: bool = False
    chunk_tokens: int = 0
    tiled_logits: bool = False


Watch = Callable[[int, torch.Tensor, Inputs], None]
"""An observer: called with a unit's number, its output and the inputs of its samples."""


class Stage:
    """Units [first_unit, first_unit + len(units)) of the model, cut at the freeze point into frozen and trainable ones.

    watch: observer of the output of each unit but the head, or None.
    """

    def __init__(self, units: Sequence[nn.Module], first_unit: int, freeze_point: int, settings: StageSettings) -> None:
        self.units = list(units)
        self.first_unit = first_unit
        self.settings = settings
        self.num_frozen = min(max(freeze_point - first_unit, 0), len(self.units))
        self.watch: Watch | None = None
        self.starts_learning = 0 < freeze_point == first_unit + self.num_frozen and not self.is_frozen
        self._run = [compiled(unit) for unit in self.units] if settings.compiled else self.units
        for index, unit in enumerate(self.units):
            frozen = index < self.num_frozen
            set_frozen(unit, frozen)

    @property
    def is_frozen(self) -> bool:
        """Whether all units of the stage are frozen, so that it runs forward only."""
        return self.num_frozen == len(self.units)

    def is_evidence(self, is_last: bool) -> bool:
        """Whether audits compare the stage's output.

        An auditor may have the logits of more tiles than the audited member, so logits are left out: loss and gradients, which
        are made of all logits, stand for them. is_last: the stage ends with the head.
        """
        return not (is_last and self.settings.tiled_logits)

    @property
    def entered_rows(self) -> Rows:
        """The row tiles of what enters the first unit that learns; all if that is the head behind frozen units."""
        behind_frozen = self.is_frozen or (self.num_frozen > 0 and self._is_head(self.num_frozen))
        return WHOLE if behind_frozen else row_tiles(self.units[self.num_frozen])

    def _is_head(self, index: int) -> bool:
        return self.first_unit + index == self.settings.num_units - 1

    def trainable(self) -> list[tuple[int, nn.Module]]:
        """(unit index, unit) of the units that learn, in order."""
        return [(self.first_unit + index, self.units[index]) for index in range(self.num_frozen, len(self.units))]

    @property
    def num_whole(self) -> int:
        """How many units, from the first, compute whole sequences even if others compute cells: frozen ones and the embedding."""
        return max(self.num_frozen, int(self.first_unit == 0))

    def run_frozen(self, hidden: torch.Tensor | None, inputs: Inputs, first: int = 0, last: int | None = None,
                   round_last: bool = True) -> torch.Tensor:  # fmt: skip
        """Run frozen units [first, last) of this stage (counted within it) on a tile of samples; no graph is kept.

        round_last: whether the last output goes through the codec. Values that fill the cache must not have been through it.
        """
        if not self.settings.one_sample_tiles:
            return self._run_frozen_tile(hidden, inputs, first, last, round_last)
        count = hidden.shape[0] if hidden is not None else next(iter(inputs.values())).shape[0]
        rows = [slice(place, place + 1) for place in range(count)]
        return torch.cat([
            self._run_frozen_tile(
                None if hidden is None else aligned(hidden[row]), {name: aligned(value[row]) for name, value in inputs.items()},
                first, last, round_last,
            )
            for row in rows
        ])  # fmt: skip

    def _run_frozen_tile(self, hidden: torch.Tensor | None, inputs: Inputs, first: int, last: int | None,
                         round_last: bool) -> torch.Tensor:  # fmt: skip
        end = self.num_frozen if last is None else last
        settings = self.settings
        with torch.no_grad(), settings.precision.computing(settings.device):
            for index in range(first, end):
                hidden = self._shown(index, self._rounded(index, self._run[index](hidden, inputs)), inputs)
                if settings.round_trip is None or self.first_unit + index + 1 not in settings.codec_chain:
                    continue
                if round_last or index + 1 < end:
                    hidden = settings.round_trip(hidden)
        assert hidden is not None
        return hidden

    def run_trainable(
        self, hidden: torch.Tensor | None, inputs: Inputs, step: int, micro_batch: int, score: Score | None = None,
        units: range | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Run the units that learn on one micro-batch. Random numbers depend on (seed, step, micro-batch, unit) alone.

        Args:
            score: In the stage with the head, a function of the logits (the loss), whose value is returned instead of them.
            units: Only these, counted within the stage; with a score they end with the head. None: all that learn.
        """
        device, in_chunks = self.settings.device, score is not None and self.settings.chunk_tokens > 0
        units = units if units is not None else range(self.num_frozen, len(self.units))
        with self.settings.precision.computing(device):
            for index in units[: len(units) - in_chunks]:
                hidden = self._run_unit(index, hidden, inputs, self._seed(step, micro_batch, self.first_unit + index))
                hidden = self._shown(index, hidden, inputs)
        assert hidden is not None
        if score is None:
            return hidden
        if not in_chunks:
            return score(hidden, inputs)
        hidden = self._of_all_samples(len(self.units) - 1, hidden)

        def head(piece: torch.Tensor, cut: Inputs, chunk: int) -> torch.Tensor:
            seed = self._seed(step, micro_batch, self.first_unit + len(self.units) - 1, chunk)
            with self.settings.precision.computing(device):
                return _seeded(self._run[-1], seed, device, piece, cut)

        return sum_over_chunks(head, score, hidden, inputs, self.settings.chunk_tokens)

    def run_embedding(self, inputs: Inputs, step: int, micro_batch: int) -> torch.Tensor:
        """Run unit 0 on whole sequences, if it learns and the other units compute cells."""
        with self.settings.precision.computing(self.settings.device):
            return self._run_unit(0, None, inputs, self._seed(step, micro_batch, 0))

    def run_cell(self, hidden: torch.Tensor, inputs: Inputs, step: int, micro_batch: int, number: int,
                 cells: Mapping[int, Cell]) -> torch.Tensor:  # fmt: skip
        """Run the units from `num_whole` on, on one cell of a micro-batch.

        Args:
            inputs: Of the whole micro-batch.
            number: The cell's; random numbers depend on (seed, step, micro-batch, unit, cell).
            cells: Each unit's view of the cell, by the unit's index within the stage.
        """
        with self.settings.precision.computing(self.settings.device):
            for index in range(self.num_whole, len(self.units)):
                seed = self._seed(step, micro_batch, self.first_unit + index, number)
                cell, unit = cells[index], self.units[index]
                if getattr(unit, "position_wise", False):
                    hidden = self._run_unit(index, hidden, cut_tokens(inputs, cell.start, cell.stop, cell.tokens), seed)
                    continue
                hidden = self._run_unit(index, hidden, inputs, seed, cell)
                if not cell.was_updated():
                    raise ValueError(
                        f"unit {self.first_unit + index} ({type(unit).__name__}) did not hand its keys and values to the cell "
                        "that it was given (Cell.update); set training.token_cells to 1, or repair the family"
                    )
        return hidden

    def _run_unit(self, index: int, hidden: torch.Tensor | None, inputs: Inputs, seed: int | None,
                  cell: Cell | None = None) -> torch.Tensor:  # fmt: skip
        hidden = self._of_all_samples(index, hidden) if hidden is not None and self._is_head(index) else hidden
        arguments = (self._run[index], seed, self.settings.device, hidden, inputs, *(() if cell is None else (cell,)))
        if self.settings.checkpointing and torch.is_grad_enabled():
            output = checkpoint(_seeded, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            output = _seeded(*arguments)
        output = self._rounded(index, output)
        return output if self.first_unit + index else own_samples(row_tiles(self.units[index]), output)

    def _of_all_samples(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """The head's input, gathered if members of a group have divided the samples before it."""
        behind_frozen = index == self.num_frozen > 0
        return hidden if behind_frozen else gathered(row_tiles(self.units[index]), hidden)

    def _seed(self, *place: int) -> int | None:
        """The dropout seed of a place; None if the job has no dropout.

        place: step, micro-batch, unit; and the cell, or the chunk if the head computes in chunks.
        """
        return seed_of("dropout", self.settings.seed, *place) if self.settings.dropout else None

    def _rounded(self, index: int, output: torch.Tensor) -> torch.Tensor:
        """A unit's output in the boundary's type, wherever the model is cut; the head's logits unchanged."""
        return output if self._is_head(index) else output.to(self.settings.precision.boundary)

    def _shown(self, index: int, output: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.watch is not None and not self._is_head(index):
            self.watch(self.first_unit + index, output, inputs)
        return output

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context with every unit in eval mode, as evaluation and the final score need it; it restores the modes."""
        for unit in self.units:
            unit.eval()
        try:
            yield
        finally:
            for index, unit in enumerate(self.units):
                unit.train(index >= self.num_frozen)


def _seeded(unit: Runner, seed: int | None, device: torch.device, hidden: torch.Tensor | None, inputs: Inputs,
            *cell: Cell) -> torch.Tensor:  # fmt: skip
    # The seed is set inside the checkpointed function, so that a recomputation in the backward draws the same mask.
    if seed is not None:
        seed_generators(seed, device)
    return unit(hidden, inputs, *cell)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that a stage can draw from, the CPU's and its own device's, as `torch.manual_seed` would.

    torch's function also prepares the seed of every kind of device that this process does not use, each with a formatted call
    stack. That would be a quarter of a small model's step, since each unit is seeded for each micro-batch.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):  # a pod's second worker is on another device than the current one
            torch.cuda.manual_seed(seed)
