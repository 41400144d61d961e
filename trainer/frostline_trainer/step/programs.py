"""Lowers a schedule to programs: for each pipeline rank the typed operations of a step, messages and reductions included.

Lowering fixes the order of messages, since the transport has no tags: every ordered pair of pipeline ranks (sender, receiver) is
a channel whose messages are matched by their order alone. A receiver posts a channel's receives in the order in which the sender
sends. It posts the receives of an operation one operation ahead, so that a message travels while its receiver computes.
`step.program_check` checks the programs of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from frostline_contract.operations import COMPUTING, GIVES_INPUT_GRADIENT, Kind, Operation
from frostline_contract.schedules import Schedule
from frostline_contract.shape import ParallelShape


class Carried(StrEnum):
    """The content of a message: an activation or a gradient."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    TIED_USE = "tied_use"


class Instruction(NamedTuple):
    """One operation of a program.

    stage: of a message, the stage that receives it. micro_batch, slice: -1 and 0 for an operation on the whole step.
    carried, peer: of a message, its content and the pipeline rank at its other end; None and -1 for other operations.
    of: of a GATHER, the kind of the other replicas' computation.
    """

    kind: Kind
    stage: int
    micro_batch: int = -1
    slice: int = 0
    carried: Carried | None = None
    peer: int = -1
    of: Kind | None = None

    @property
    def message(self) -> "Message":
        """The message's identifier, the same at both of its ends."""
        assert self.carried is not None
        return Message(self.carried, self.stage, self.micro_batch, self.slice)


class Message(NamedTuple):
    """The identifier of a message of a step. stage: the one that receives it."""

    carried: Carried
    stage: int
    micro_batch: int
    slice: int


@dataclass(frozen=True)
class Program:
    """A pipeline rank's part of a step.

    compute: computations and the messages between them. exchange: afterwards, the reductions of the rank's stages over the
    replicas, and the two uses of a tied matrix.
    """

    compute: tuple[Instruction, ...]
    exchange: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class StepShape:
    """The shape of a step: all that programs depend on beside the schedule.

    Attributes:
        num_microbatches: Of the replica.
        first_learning: Number of the first stage with a unit that learns. Stages before it run forward only.
        tied: Whether the first and the last unit share a matrix that learns.
        forward_only: An evaluation, without backwards and reductions.
        slices: Slices of each micro-batch. A stage before `first_learning` computes and sends the whole micro-batch in place of
            the first slice.
        folded: Whether a rank's two stages lie in a V.
    """

    pp_degree: int
    virtual_stages: int
    num_microbatches: int
    first_learning: int = 0
    tied: bool = False
    forward_only: bool = False
    slices: int = 1
    folded: bool = False

    @property
    def last_stage(self) -> int:
        """Number of the last stage, which has the loss."""
        return self._parallel.num_stages - 1

    def parts_of(self, stage: int) -> int:
        """Number of operations of each kind in which a stage computes a micro-batch."""
        return self.slices if stage >= self.first_learning else 1

    def owner(self, stage: int) -> int:
        """The pipeline rank that runs a stage."""
        return self._parallel.pp_rank_of_stage(stage)

    def stages_of(self, pp_rank: int) -> list[int]:
        """Numbers of a pipeline rank's stages, ascending; several where schedules are interleaved."""
        return self._parallel.stages_of(pp_rank)

    @cached_property
    def _parallel(self) -> ParallelShape:
        return ParallelShape(self.pp_degree, 1, self.virtual_stages, folded=self.folded)


Channel = tuple[int, int]
"""(sender, receiver), pipeline ranks."""


def lower(schedule: Schedule, shape: StepShape) -> list[Program]:
    """The programs of all pipeline ranks of a replica, by pipeline rank."""
    orders = [_computations(schedule, shape, pp_rank) for pp_rank in range(shape.pp_degree)]
    channels: dict[Channel, list[Message]] = {}
    for pp_rank, order in enumerate(orders):
        for operation in order:
            for message in leaves(operation, shape):
                if not stays(message, shape):
                    channels.setdefault((pp_rank, shape.owner(message.stage)), []).append(message)
    return [
        Program(_with_messages(order, pp_rank, channels, shape), _exchange(shape, pp_rank))
        for pp_rank, order in enumerate(orders)
    ]


def with_fewer(program: Program, num_microbatches: int) -> Program:
    """The program of a replica with fewer micro-batches, which makes the gathers of all computations in the program's order.

    Computations of micro-batches that it lacks become GATHERs; their messages are left out at both ends.
    """
    found = list[Instruction]()
    for one in program.compute:
        if one.micro_batch < num_microbatches:
            found.append(one)
        elif one.kind in COMPUTING:
            found.append(Instruction(Kind.GATHER, one.stage, one.micro_batch, one.slice, of=one.kind))
    return Program(tuple(found), program.exchange)


def _computations(schedule: Schedule, shape: StepShape, pp_rank: int) -> list[Operation]:
    """The schedule's operations of a pipeline rank; in an evaluation only the forwards, of all stages."""
    degrees = (pp_rank, shape.pp_degree, shape.virtual_stages, shape.num_microbatches)
    operations = schedule.operations(*degrees, shape.slices, 0 if shape.forward_only else shape.first_learning)
    return [operation for operation in operations if not shape.forward_only or operation.kind is Kind.FORWARD]


def enters(operation: Operation, shape: StepShape) -> list[Message]:
    """The messages that a computation waits for."""
    _, stage, micro_batch, part = operation
    if operation.kind is Kind.FORWARD and stage > 0:
        if part and stage <= shape.first_learning:
            return []  # the first slice has brought the whole micro-batch
        return [Message(Carried.ACTIVATION, stage, micro_batch, part)]
    if operation.kind in GIVES_INPUT_GRADIENT and stage < shape.last_stage:
        return [Message(Carried.GRADIENT, stage, micro_batch, part)]
    return []


def leaves(operation: Operation, shape: StepShape) -> list[Message]:
    """The messages that a computation's result is sent in."""
    _, stage, micro_batch, part = operation
    if operation.kind is Kind.FORWARD and stage < shape.last_stage:
        return [Message(Carried.ACTIVATION, stage + 1, micro_batch, part)]
    if operation.kind in GIVES_INPUT_GRADIENT and stage > shape.first_learning:
        return [Message(Carried.GRADIENT, stage - 1, micro_batch, part)]
    return []


def sender_of(message: Message, shape: StepShape) -> int:
    """The pipeline rank from which a message comes."""
    return shape.owner(message.stage + (-1 if message.carried is Carried.ACTIVATION else 1))


def stays(message: Message, shape: StepShape) -> bool:
    """Whether a message's two ends are on one pipeline rank, at the turn of a V, so that nothing is sent."""
    return sender_of(message, shape) == shape.owner(message.stage)


def _with_messages(
    order: Sequence[Operation], pp_rank: int, channels: dict[Channel, list[Message]], shape: StepShape
) -> tuple[Instruction, ...]:
    """A rank's operations with sends, and with receives one computation ahead, each channel's in its sender's order."""
    program: list[Instruction] = []
    posted: set[Message] = set()
    left = {channel: iter(messages) for channel, messages in channels.items() if channel[1] == pp_rank}

    def post(operation: Operation) -> None:
        for wanted in enters(operation, shape):
            if stays(wanted, shape):
                continue
            sender = sender_of(wanted, shape)
            while wanted not in posted:
                # The receive of a message that nobody sends is posted all the same: the check reports it.
                message = next(left.get((sender, pp_rank), iter(())), wanted)
                posted.add(message)
                program.append(
                    Instruction(Kind.RECEIVE, message.stage, message.micro_batch, message.slice, message.carried, sender)
                )

    for operation, ahead in zip(order, [*order[1:], None], strict=True):
        post(operation)
        if ahead is not None:
            post(ahead)
        program.append(Instruction(*operation))
        for message in leaves(operation, shape):
            if stays(message, shape):
                continue
            receiver = shape.owner(message.stage)
            program.append(Instruction(Kind.SEND, message.stage, message.micro_batch, message.slice, message.carried, receiver))
    return tuple(program)


def _exchange(shape: StepShape, pp_rank: int) -> tuple[Instruction, ...]:
    if shape.forward_only:
        return ()
    program = [Instruction(Kind.REDUCE, stage) for stage in shape.stages_of(pp_rank) if stage >= shape.first_learning]
    ends = {0: shape.last_stage, shape.last_stage: 0}
    if shape.tied and shape.owner(0) != shape.owner(shape.last_stage):
        for own, other in ends.items():
            if shape.owner(own) == pp_rank:
                peer = shape.owner(other)
                program += [
                    Instruction(Kind.RECEIVE, own, carried=Carried.TIED_USE, peer=peer),
                    Instruction(Kind.SEND, other, carried=Carried.TIED_USE, peer=peer),
                ]
    return tuple(program)


def computation(instruction: Instruction) -> Operation | None:
    """The instruction as a computation of the schedule; None for messages and reductions."""
    if instruction.kind not in COMPUTING:
        return None
    return Operation(instruction.kind, instruction.stage, instruction.micro_batch, instruction.slice)
