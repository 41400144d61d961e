"""Silent corruption, as a planned fault: a bit of a tensor, and a processor that computes wrong bits (docs/faults.md)."""

from dataclasses import dataclass

import torch
from torch import nn

from frostline_trainer.process.plug import Plug

BIT = 1 << 4
"""A low bit of the significand in every type: nothing becomes infinite, and nobody would see it in a loss."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip_first(tensor: torch.Tensor) -> None:
    """Change one bit of a tensor's first element, in place, behind the back of whoever keeps it for a backward."""
    tensor.data.view(-1)[:1].view(INTEGERS[tensor.element_size()]).bitwise_xor_(BIT)


def flipped(rows: torch.Tensor) -> torch.Tensor:
    """A copy in which every row has another bit in its first element."""
    copy = rows.clone()
    for row in copy:
        flip_first(row)
    return copy


@dataclass
class Flaw(Plug):
    """A worker that computes wrong bits: a planned fault of the kind `flip`.

    what: `activation`, `gradient`, or nothing. lasting: a broken core, whatever it computes; otherwise of one step's schedule,
    so that the same computation done again comes out right.
    """

    what: str = ""
    lasting: bool = False

    def activation(self, output: torch.Tensor) -> torch.Tensor:
        """What a stage gives on after a forward."""
        if self.what == "activation":
            output = output.contiguous()
            flip_first(output)
        return output

    def gradient(self, parameters: list[nn.Parameter]) -> None:
        """The `.grad`s of a stage after the backward of one micro-batch."""
        if self.what == "gradient" and parameters:
            assert parameters[0].grad is not None
            flip_first(parameters[0].grad)

    def end_of_schedule(self) -> None:
        if not self.lasting:
            self.what = ""
