"""One unit on one micro-batch, forward and backward as a stage runs it: for what is probed, measured and checked before a run."""

import torch

from frostline_trainer.step.chunks import Inputs, Score
from frostline_trainer.step.grid import Grid
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.strand import Strand


class OneUnit:
    """A unit that is computed alone.

    stage: of the unit alone. entry: None for an embedding. score: None for all but the head. grid: bounds of the cells that
    units behind the embedding compute, () for whole sequences.
    """

    def __init__(self, stage: Stage, inputs: Inputs, entry: torch.Tensor | None, score: Score | None, grid: Grid) -> None:
        self._stage, self._inputs, self._entry, self._score = stage, inputs, entry, score
        self._cells = range(len(grid) - 1)
        self._strand = Strand(stage, grid, inputs, (0, 0), score, entry_learns=True) if grid and entry is not None else None
        self._root: torch.Tensor | None = None

    def forward(self) -> torch.Tensor:
        """The output, or the loss of what has a score."""
        if self._strand is not None:
            assert self._entry is not None
            self._root = self._strand.forward(self._cells, self._entry)
        else:
            self._root = self._stage.run_trainable(self._entry, self._inputs, 0, 0, self._score)
        return self._root.detach()

    def backward(self, gradient: torch.Tensor | None) -> None:
        """The gradients of weights and entry become their `.grad`s; an embedding that never learns has none.

        gradient: of the output; None for a loss.
        """
        assert self._root is not None
        if self._strand is None:
            if self._root.requires_grad:
                self._root.backward(gradient)
            return
        assert self._entry is not None
        if gradient is not None:
            self._strand.take_gradient(self._cells, gradient)
        for addend in self._strand.addends(self._cells):
            addend()
        self._entry.grad = self._strand.entry_gradient(self._cells)
