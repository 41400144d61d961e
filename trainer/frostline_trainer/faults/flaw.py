"""Silent corruption as a planned fault: a flipped bit of a tensor, or a processor that computes wrong bits (docs/faults.md)."""

from dataclasses import dataclass

import torch
from torch import nn

from frostline_trainer.process.plug import Plug

BIT = 1 << 4
"""A low bit of the significand in every type: it makes no value infinite, and is invisible in a loss."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip_first(tensor: torch.Tensor) -> None:
    """Flip one bit of a tensor's first element, in place and unseen by autograd."""
    tensor.data.view(-1)[:1].view(INTEGERS[tensor.element_size()]).bitwise_xor_(BIT)


def flipped(rows: torch.Tensor) -> torch.Tensor:
    """A copy in which the first element of every row has one bit flipped."""
    copy = rows.clone()
    for row in copy:
        flip_first(row)
    return copy


@dataclass
class Flaw(Plug):
    """A worker that computes wrong bits: a planned fault of the kind `flip`.

    what: `activation`, `gradient`, or "". lasting: whether all computations are wrong, as on a broken core; otherwise only those
    of one step's schedule, so that a recomputation is right.
    """

    what: str = ""
    lasting: bool = False

    def activation(self, output: torch.Tensor) -> torch.Tensor:
        """A stage's output after a forward, with a flipped bit if this flaw is of activations."""
        if self.what == "activation":
            output = output.contiguous()
            flip_first(output)
        return output

    def gradient(self, parameters: list[nn.Parameter]) -> None:
        """Flip a bit of a stage's `.grad`s after the backward of one micro-batch, if this flaw is of gradients."""
        if self.what == "gradient" and parameters:
            assert parameters[0].grad is not None
            flip_first(parameters[0].grad)

    def end_of_schedule(self) -> None:
        if not self.lasting:
            self.what = ""
