"""A strand: one stage's work on one micro-batch, cell by cell, from the first cell's forward to that cell's backward.

Frozen units and the embedding compute whole sequences: their output is cut into cells, and the gradients of the cells are
concatenated for the embedding's one backward. Cells are computed first to last in the forward and last to first in the backward,
however many of them one operation takes (a slice). So the order of every sum depends on the grid only, not on the slices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from frostline_trainer.families.cells import Cell, Memory
from frostline_trainer.step.chunks import Inputs, Score, cut_tokens
from frostline_trainer.step.grid import Grid, cells_of
from frostline_trainer.step.split_backward import SplitBackward
from frostline_trainer.step.stage import Stage

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class _SavedCell:
    """The tensors of a cell that are kept from its forward to its backward.

    output: of the last unit, if evidence is wanted. root: the cell's share of the loss in the last stage, else the output.
    gradient: of the root, once it is received. split: set if the entry's gradient was computed ahead of the weights'.
    """

    entry: torch.Tensor
    output: torch.Tensor | None
    root: torch.Tensor
    gradient: torch.Tensor | None = None
    split: SplitBackward | None = None


class Strand:
    """A stage's work on one micro-batch.

    Args:
        stage: It has at least one unit that learns.
        inputs: Of the whole micro-batch.
        place: (step, number of the micro-batch): random numbers depend on it, on unit and cell.
        score: In the last stage, a function of a cell's logits (the loss); None elsewhere.
        entry_learns: Whether the gradient of the stage's entry is wanted.
        keep: Whether to keep all cells to the end, for evidence.
        activation: Applied to each output.
    """

    def __init__(self, stage: Stage, grid: Grid, inputs: Inputs, place: tuple[int, int], score: Score | None, entry_learns: bool,
                 keep: bool = False, activation: Activation = lambda output: output) -> None:  # fmt: skip
        self._stage, self._cells, self._inputs, self._place = stage, cells_of(grid), inputs, place
        self._score, self._entry_learns, self._keep, self._activation = score, entry_learns, keep, activation
        self._embeds = stage.first_unit == 0 and stage.num_frozen == 0
        self._memories = {index: Memory(grid[-1]) for index in range(stage.num_whole, len(stage.units))}
        self._saved: dict[int, _SavedCell] = {}
        self._loss: torch.Tensor | None = None
        self._entry: torch.Tensor | None = None
        self._source: torch.Tensor | None = None
        self._embedded: tuple[torch.Tensor, torch.Tensor] | None = None

    def begin(self, entry: torch.Tensor | None, source: torch.Tensor | None) -> None:
        """Set the stage's whole input, before the first cell, if nothing upstream learns.

        entry: the whole input; None for raw samples. source: the output of the stage's frozen units, which is cut into cells. If
        the stage begins with an embedding that learns, its output is computed now and is the source.
        """
        self._entry, self._source = entry, source
        if self._embeds:
            output = self._stage.run_embedding(self._inputs, *self._place)
            self._embedded, self._source = (output, torch.empty_like(output)), output.detach()

    def forward(self, cells: Sequence[int], entry: torch.Tensor | None) -> torch.Tensor:
        """Run the forward of consecutive cells, ascending. entry: their concatenated input; None after `begin`.

        Returns their concatenated output; in the last stage, the micro-batch's loss over the cells so far, in float64.
        """
        source, start = (self._source, 0) if entry is None else (entry.detach(), self._cells[cells[0]][0])
        assert source is not None
        roots = [self._forward_cell(cell, source, start) for cell in cells]
        if cells[-1] == len(self._cells) - 1:
            self._source = None
        if self._score is None:
            return roots[0] if len(roots) == 1 else torch.cat(roots, dim=1)
        for root in roots:
            self._loss = root.double() if self._loss is None else self._loss + root.double()
        assert self._loss is not None
        return self._loss

    def _forward_cell(self, number: int, source: torch.Tensor, start: int) -> torch.Tensor:
        low, high = self._cells[number]
        entry = _token_range(source, low - start, high - start).requires_grad_(self._entry_learns or self._embeds)
        cells = {index: Cell(low, high, memory) for index, memory in self._memories.items()}
        output = root = self._activation(self._stage.run_cell(entry, self._inputs, *self._place, number, cells))
        if self._score is not None:
            root = self._score(output, cut_tokens(self._inputs, low, high, self._cells[-1][1]))
        is_shown = self._keep and self._stage.is_evidence(self._score is not None)
        self._saved[number] = _SavedCell(entry, output.detach() if is_shown else None, root)
        return root.detach()

    def take_gradient(self, cells: Sequence[int], gradient: torch.Tensor) -> None:
        """Take the gradient of these cells' concatenated output, from the next stage."""
        start = self._cells[cells[0]][0]
        for cell in cells:
            low, high = self._cells[cell]
            self._saved[cell].gradient = _token_range(gradient, low - start, high - start)

    def backward_input(self, cells: Sequence[int], weights: Sequence[nn.Parameter]) -> None:
        """Compute the gradients of the cells' entries alone, last cell to first; graphs are kept for the weights' gradients."""
        for cell in reversed(cells):
            saved = self._saved[cell]
            if saved.entry.requires_grad:
                recomputes = self._stage.settings.checkpointing
                saved.split = SplitBackward(saved.root, saved.gradient, saved.entry, weights, recomputes)

    def addends(self, cells: Sequence[int], weights: Sequence[nn.Parameter] | None = None) -> list[Callable[[], None]]:
        """Functions that each add one addend to the weights' gradients, in order: one for each cell, last to first, which also
        computes the entry's gradient; after the first cell, one for the embedding.

        weights: after `backward_input`, the weights that learn; None: without it.
        """
        closing: list[Callable[[], None]] = [partial(self._backward_cell, cell, weights) for cell in reversed(cells)]
        return [*closing, self._backward_embedding] if cells[0] == 0 and self._embeds else closing

    def _backward_cell(self, cell: int, weights: Sequence[nn.Parameter] | None) -> None:
        saved = self._saved[cell]
        if saved.split is not None:
            saved.split.close()
            saved.split = None
        else:
            torch.autograd.backward(saved.root, saved.gradient, inputs=weights)
        saved.root = saved.root.detach()
        if self._embedded is not None:
            low, high = self._cells[cell]
            self._embedded[1][:, low:high] = saved.entry.grad

    def _backward_embedding(self) -> None:
        assert self._embedded is not None
        torch.autograd.backward(*self._embedded)
        self._embedded = None

    def entry_gradient(self, cells: Sequence[int]) -> torch.Tensor:
        """The concatenated gradient of the cells' entries, for the previous stage."""
        return _concatenated([self._saved[cell].entry.grad for cell in cells])

    def forget(self, cells: Sequence[int]) -> None:
        """Free cells whose backward is done and whose gradients have been sent; if evidence is wanted, keep all."""
        for cell in () if self._keep else cells:
            del self._saved[cell]

    # ---- evidence

    def whole_entry(self) -> torch.Tensor | None:
        """The stage's whole input; None for raw samples."""
        return _concatenated([saved.entry.detach() for saved in self._in_order()]) if self._entry_learns else self._entry

    def whole_gradient(self) -> torch.Tensor | None:
        """The gradient of the stage's whole output; None in the last stage."""
        return _concatenated([saved.gradient for saved in self._in_order()]) if self._score is None else None

    def traces(self) -> list[torch.Tensor | None]:
        """By cell, all results of the stage but its weights' gradients: output, root, gradient of the entry."""
        return [
            trace
            for saved in self._in_order()
            for trace in (saved.output, saved.root, saved.entry.grad if self._entry_learns else None)
        ]

    def _in_order(self) -> list[_SavedCell]:
        return [self._saved[cell] for cell in range(len(self._cells))]


def _token_range(whole: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A copy of the tokens [start, stop), aligned wherever they lay (step/alignment.py)."""
    return whole[:, start:stop].clone(memory_format=torch.contiguous_format)


def _concatenated(parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The concatenation of all parts of a sequence; none may be None."""
    found = [part for part in parts if part is not None]
    assert len(found) == len(parts), "a part of the sequence is missing"
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)
