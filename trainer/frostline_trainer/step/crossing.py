"""The messages of a pipeline rank's stages in a step: posted receives, sends, and tensors that other stages are to have."""

from collections.abc import Callable, Mapping

import torch

from frostline_contract.operations import Kind
from frostline_trainer.step.programs import Carried, Instruction, Message
from frostline_trainer.step.stage import Stage
from frostline_trainer.tensor.messages import own_line
from frostline_trainer.tensor.rows import Rows, row_tiles
from frostline_trainer.transport.transport import Transfer, Transport


class Crossing:
    """The messages of one rank.

    Where the members of a tensor-parallel group divide a micro-batch's samples, a stage that learns has its own samples alone of
    a tensor, and a frozen one all. A member with all samples exchanges shares of them with its group (`tensor.messages`). A share
    is what the member in the same place has as its own samples, so both ends of a message need not be alike.

    Args:
        stages: the rank's stages by number.
        transport: carries the messages of the replica's members.
    """

    def __init__(self, stages: Mapping[int, Stage], transport: Transport) -> None:
        self._stages, self._transport = stages, transport
        self._sent: list[Transfer] = []
        self._receiving: dict[Message, tuple[torch.Tensor, Transfer]] = {}
        self._outgoing: dict[Message, torch.Tensor] = {}

    def give(self, message: Message, tensor: torch.Tensor) -> None:
        """Take a tensor that another stage is to have; it is sent later, unless that stage is this rank's too."""
        self._outgoing[message] = tensor

    def start(self, instruction: Instruction, buffer: Callable[[Message], torch.Tensor]) -> bool:
        """Start the instruction's send or receive, and return True; return False if the instruction is a computation.

        buffer: makes an empty tensor in a message's shape, with all samples.
        """
        if instruction.kind not in (Kind.RECEIVE, Kind.SEND):
            return False
        message, sends = instruction.message, instruction.kind is Kind.SEND
        rows = self._rows(message, sends)
        if sends:
            self._sent.append(self._line(rows).send(self._outgoing.pop(message), instruction.peer))
            return True
        tensor = buffer(message)
        if rows.are_divided:
            tensor = torch.empty_like(rows.own(tensor))
        self._receiving[message] = tensor, self._line(rows).receive(tensor, instruction.peer)
        return True

    def take(self, message: Message) -> torch.Tensor:
        """The tensor of a message; this waits if it has not arrived.

        At the turn of a V another stage of this rank made the tensor: then it is copied to its own memory, like a message.
        """
        if message in self._outgoing:
            made, rows = self._outgoing.pop(message), self._rows(message, sends=False)
            if not self._rows(message, sends=True).are_divided:
                made = rows.own(made)
            return made.clone(memory_format=torch.contiguous_format)
        tensor, transfer = self._receiving[message]
        transfer.wait()
        del self._receiving[message]
        return tensor

    def is_here(self, message: Message) -> bool:
        """Whether another stage of this rank made the tensor."""
        return message in self._outgoing

    def finish_sending(self) -> None:
        """Wait until all that was sent has left."""
        self._transport.wait_all(self._sent)
        self._sent.clear()

    def abandon(self) -> None:
        """Drop messages under way, so that the transport's sockets can close."""
        self._sent.clear()
        self._receiving.clear()
        self._outgoing.clear()

    def _line(self, rows: Rows) -> Transport:
        """The transport of a tensor of which this rank has these row tiles."""
        return own_line(self._transport) if rows.are_divided else self._transport

    def _rows(self, message: Message, sends: bool) -> Rows:
        """The row tiles that this rank has of a message's tensor. sends: as its sender, or else as its receiver."""
        forward = message.carried is Carried.ACTIVATION
        number = message.stage if not sends else message.stage - 1 if forward else message.stage + 1
        units = self._stages[number].units
        return row_tiles(units[-1] if forward == sends else units[0])
