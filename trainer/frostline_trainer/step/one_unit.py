"""One unit on one micro-batch, forward and backward as a stage runs it: for probes, measurements and checks before a run."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from frostline_trainer.step.chunks import Inputs, Score
from frostline_trainer.step.grid import Grid
from frostline_trainer.step.split_backward import SplitBackward
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.strand import Strand


class OneUnit:
    """A unit that is computed alone.

    stage: of the unit alone. entry: None for an embedding. score: None for all but the head. grid: bounds of the cells that
    units behind the embedding compute, () for whole sequences.
    """

    def __init__(self, stage: Stage, inputs: Inputs, entry: torch.Tensor | None, score: Score | None, grid: Grid) -> None:
        self._stage, self._inputs, self._entry, self._score = stage, inputs, entry, score
        self._grid, self._cells = grid, range(len(grid) - 1)
        self._strand = Strand(stage, grid, inputs, (0, 0), score, entry_learns=True) if grid and entry is not None else None
        self._root: torch.Tensor | None = None
        self._split: SplitBackward | None = None

    def forward(self) -> torch.Tensor:
        """The unit's output, or the loss if it has a score."""
        if self._strand is not None:
            assert self._entry is not None
            self._root = self._strand.forward(self._cells, self._entry)
        else:
            self._root = self._stage.run_trainable(self._entry, self._inputs, 0, 0, self._score)
        return self._root.detach()

    def forward_by_cell(self, after: Callable[[], None]) -> torch.Tensor:
        """As `forward`, with each cell as a slice of its own. after: called after each cell."""
        assert self._strand is not None and self._entry is not None
        outputs = []
        for cell in self._cells:
            low, high = self._grid[cell], self._grid[cell + 1]
            outputs.append(self._strand.forward((cell,), self._entry[:, low:high]))
            after()
        self._root = outputs[-1] if self._score is not None else torch.cat(outputs, dim=1)
        return self._root.detach()

    @property
    def has_cells(self) -> bool:
        """Whether the unit computes cell by cell."""
        return self._strand is not None

    def backward(self, gradient: torch.Tensor | None, after: Callable[[], None] = lambda: None) -> None:
        """Compute the `.grad`s of weights and entry; an embedding that never learns has none.

        gradient: of the output; None for a loss. after: called after each cell, the last one first.
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
            after()
        self._entry.grad = self._strand.entry_gradient(self._cells)

    def backward_input(self, gradient: torch.Tensor | None, weights: Sequence[nn.Parameter]) -> None:
        """Compute the entry's gradient alone; `backward_weights` does the rest. weights: those that learn."""
        assert self._root is not None and self._entry is not None
        if self._strand is None:
            self._split = SplitBackward(self._root, gradient, self._entry, weights, self._stage.settings.checkpointing)
            return
        if gradient is not None:
            self._strand.take_gradient(self._cells, gradient)
        self._strand.backward_input(self._cells, weights)

    def backward_weights(self, weights: Sequence[nn.Parameter]) -> None:
        """Compute the weights' gradients, after `backward_input`."""
        if self._split is not None:
            self._split.close()
        for addend in self._strand.addends(self._cells, weights) if self._strand is not None else ():
            addend()
