"""What a stage keeps of a micro-batch from its forward to its backward, and the backward itself, whole or in two parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from frostline_trainer.step.split_backward import SplitBackward


@dataclass
class SavedForward:
    """The tensors of a micro-batch that a stage keeps from its forward to its backward.

    root: where the backward begins: the loss in the last stage, else the output. output: kept if a digest of it is wanted.
    gradient: of the output, once it is received. split: set if the input's gradient was computed ahead of the weights'.
    """

    entry: torch.Tensor | None
    root: torch.Tensor
    output: torch.Tensor | None = None
    gradient: torch.Tensor | None = None
    split: SplitBackward | None = None

    def backward(self, inputs: Sequence[torch.Tensor] | None = None) -> None:
        """Run the backward from the root, and add to the `.grad`s. inputs: only of these; None: of all."""
        torch.autograd.backward(self.root, self.gradient, inputs=inputs)

    def backward_input(self, weights: Sequence[nn.Parameter], recomputes: bool) -> None:
        """Compute the gradient of the entry alone; the graph is kept for the weights' gradients.

        weights: those of the stage that learn. recomputes: the backward computes the forward again.
        """
        assert self.entry is not None
        self.split = SplitBackward(self.root, self.gradient, self.entry, weights, recomputes)

    def close_split(self) -> bool:
        """Compute the weights' gradients if `backward_input` has computed the entry's. Returns whether it has."""
        if self.split is not None:
            self.split.close()
        return self.split is not None
