"""The program check: proves before a step that its programs neither deadlock nor miss an operation, on a weak transport.

The assumed transport is the weakest that Frostline runs on (docs/protocols.md 1.17): a send ends only when its receive has been
posted, the messages of a channel (sender, receiver) are matched by their order alone, and a message is sent only after the
computations before it in the sender's program. Programs that end on it end on every stronger transport.

Where weights are gathered at each use (`placement.shard: use`), a gather is a collective of all replicas at one pipeline rank.
Each of them runs the program of the replica with most micro-batches, with the computations that it lacks left out but for their
gathers. If all make their gathers in one order, they end as one replica does: in the order in which the longest program ends,
with all replicas at each computation.

Tensor-parallel groups run a program in each of their lines, and meet in gathers and sums at each computation. Programs that
end for single workers end for groups too: in the same order, with a group in place of each worker.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from frostline_contract.operations import COMPUTING, GIVES_INPUT_GRADIENT, GIVES_WEIGHT_GRADIENT, Kind, Operation, Order
from frostline_contract.schedules import Schedule
from frostline_trainer.step.programs import (
    Channel,
    Instruction,
    Message,
    Program,
    StepShape,
    computation,
    enters,
    leaves,
    lower,
    sender_of,
    stays,
    with_fewer,
)


@lru_cache(maxsize=16)
def checked_programs(schedule: Schedule, shape: StepShape, leaf_sizes: tuple[int, ...]) -> list[Program]:
    """The programs of all pipeline ranks of a replica, proven sound.

    Args:
        schedule: the order of computation.
        shape: the step's shape.
        leaf_sizes: micro-batches of each leaf that the replica sums, in order; ones where sums are not exact.

    Raises:
        ValueError: the schedule misses or repeats an operation, deadlocks, or breaks the fixed order of a leaf's sum.
    """
    programs = lower(schedule, shape)
    check_programs(programs, shape, leaf_sizes)
    return programs


@lru_cache(maxsize=16)
def checked_gathers(schedule: Schedule, shape: StepShape, leaf_sizes: tuple[tuple[int, ...], ...]) -> list[list[Program]]:
    """The programs of all replicas that gather weights at each use, by replica and pipeline rank, proven sound.

    Args:
        schedule: the order of computation.
        shape: the step's shape, for any replica.
        leaf_sizes: by replica, as in `checked_programs`.

    Raises:
        ValueError: as `checked_programs`, or replicas would make their gathers in different orders.
    """
    most = max(map(sum, leaf_sizes))
    longest = lower(schedule, replace(shape, num_microbatches=most))
    found = [[with_fewer(program, sum(sizes)) for program in longest] for sizes in leaf_sizes]
    for programs, sizes in zip(found, leaf_sizes, strict=True):
        check_programs(programs, replace(shape, num_microbatches=sum(sizes)), sizes)
    for pp_rank, line in enumerate(zip(*found, strict=True)):
        check_gathers(line, pp_rank)
    return found


def check_gathers(line: Sequence[Program], pp_rank: int) -> None:
    """Check that the replicas at a pipeline rank gather in one order. Raises ValueError if two of them do not."""
    first, *others = [
        [(one.of or one.kind, *one[1:4]) for one in program.compute if one.kind is Kind.GATHER or one.kind in COMPUTING]
        for program in line
    ]
    for replica, order in enumerate(others, 1):
        if order != first:
            place = next((n for n, (one, other) in enumerate(zip(first, order, strict=False)) if one != other), len(order))
            raise ValueError(
                f"replica {replica} on pp_rank {pp_rank} gathers in another order than replica 0, from computation {place} on"
            )


def check_schedule(schedule: Schedule | Order, pp_degree: int, virtual_stages: int, leaf_sizes: Sequence[int]) -> None:
    """Check a schedule for one shape without frozen stages: for tests of a schedule. Raises ValueError as `checked_programs`."""
    schedule = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
    shape = StepShape(pp_degree, virtual_stages, sum(leaf_sizes), folded=schedule.folded)
    checked_programs(schedule, shape, tuple(leaf_sizes))


def check_programs(programs: Sequence[Program], shape: StepShape, leaf_sizes: Sequence[int]) -> None:
    """Check the programs of all pipeline ranks. Raises ValueError as `checked_programs`."""
    for pp_rank, program in enumerate(programs):
        _check_computations(program, shape, pp_rank)
        _check_messages(program, shape, pp_rank)
        _check_exchange(program, shape, pp_rank)
    _check_waits(programs, shape)
    if not shape.forward_only:
        for program in programs:
            _check_leaves(program, leaf_sizes)
            _check_slices(program, shape.slices)


def _check_computations(program: Program, shape: StepShape, pp_rank: int) -> None:
    """Check that each computation comes once, on the rank of its stage, after those of the same stage that it needs."""
    done: set[Operation] = set()
    for instruction in program.compute:
        operation = computation(instruction)
        if operation is None:
            continue
        if operation in done:
            raise ValueError(f"schedule repeats {_words(operation)} on pp_rank {pp_rank}")
        if (
            operation.stage not in shape.stages_of(pp_rank)
            or not 0 <= operation.micro_batch < shape.num_microbatches
            or not 0 <= operation.slice < shape.slices
        ):
            raise ValueError(
                f"schedule has {_words(operation)} on pp_rank {pp_rank}, which has no such stage, micro-batch or slice"
            )
        missing = [before for before in _same_stage(operation, shape.slices) if before not in done]
        if missing:
            raise ValueError(
                f"schedule waits for ever on pp_rank {pp_rank}: {_words(operation)} comes before {_words(missing[0])}"
            )
        done.add(operation)
    parts = shape.num_microbatches * shape.slices
    expected = shape.num_microbatches * sum(shape.parts_of(stage) for stage in shape.stages_of(pp_rank))
    forwards = sum(operation.kind is Kind.FORWARD for operation in done)
    learning = 0 if shape.forward_only else sum(stage >= shape.first_learning for stage in shape.stages_of(pp_rank))
    weight_gradients = sum(operation.kind in GIVES_WEIGHT_GRADIENT for operation in done)
    input_gradients = sum(operation.kind in GIVES_INPUT_GRADIENT for operation in done)
    backwards = parts * learning
    if forwards != expected or weight_gradients != backwards or input_gradients != backwards:
        raise ValueError(
            f"schedule misses operations on pp_rank {pp_rank}: {forwards} of {expected} forwards, "
            f"{input_gradients} of {backwards} gradients of inputs and {weight_gradients} of {backwards} gradients of weights"
        )


def _same_stage(operation: Operation, slices: int) -> list[Operation]:
    """Computations of the same stage that must come first; slices go forward in ascending and backward in descending order."""
    kind, stage, micro_batch, part = operation
    if kind is Kind.FORWARD:
        return [Operation(Kind.FORWARD, stage, micro_batch, part - 1)] if part else []
    if kind is Kind.WEIGHT_GRADIENT:
        return [Operation(Kind.INPUT_GRADIENT, stage, micro_batch, part)]
    whole = Operation(Kind.FORWARD, stage, micro_batch, part)
    return [whole, Operation(kind, stage, micro_batch, part + 1)] if part + 1 < slices else [whole]


def _check_messages(program: Program, shape: StepShape, pp_rank: int) -> None:
    """Check that each message is received from its sender before the computation that needs it, and sent after it is made."""
    here: set[Message] = set()
    made: set[Message] = set()
    for instruction in program.compute:
        operation = computation(instruction)
        if instruction.kind is Kind.RECEIVE:
            if sender_of(instruction.message, shape) != instruction.peer:
                raise ValueError(f"program of pp_rank {pp_rank} receives {instruction.message} from {instruction.peer}")
            here.add(instruction.message)
        elif instruction.kind is Kind.SEND:
            if instruction.message not in made:
                raise ValueError(f"program of pp_rank {pp_rank} sends {instruction.message} before it has computed it, or twice")
            made.remove(instruction.message)
        elif operation is not None:
            if not here.issuperset(enters(operation, shape)):
                raise ValueError(f"program of pp_rank {pp_rank} computes {_words(operation)} without receiving its input")
            for message in leaves(operation, shape):
                (here if stays(message, shape) else made).add(message)
    if made:
        raise ValueError(f"program of pp_rank {pp_rank} never sends {sorted(made)}")


def _check_exchange(program: Program, shape: StepShape, pp_rank: int) -> None:
    """Check that every stage that learns is reduced once, in ascending order, which is the same in all replicas."""
    reduced = [instruction.stage for instruction in program.exchange if instruction.kind is Kind.REDUCE]
    stages = [] if shape.forward_only else [stage for stage in shape.stages_of(pp_rank) if stage >= shape.first_learning]
    if reduced != stages:
        raise ValueError(f"program of pp_rank {pp_rank} reduces stages {reduced}, expected {stages}")


class _Walk:
    """All pipeline ranks' programs under way at once."""

    def __init__(self, programs: Sequence[Program], shape: StepShape) -> None:
        self._shape = shape
        self._programs = [program.compute + program.exchange for program in programs]
        self._places = [0] * len(programs)
        self._landed: set[Message] = set()
        self._sends: dict[Channel, deque[Message]] = {}
        self._receives: dict[Channel, deque[Message]] = {}

    def run(self) -> None:
        """Run all programs. Raises ValueError if a rank waits for ever, or a channel's two ends have different orders."""
        ready = deque(range(len(self._programs)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        waiting = {
            pp_rank: _words(program[place])
            for pp_rank, (place, program) in enumerate(zip(self._places, self._programs, strict=True))
            if place < len(program)
        }
        if waiting:
            raise ValueError(f"schedule waits for ever: {waiting}")
        for ends, words in ((self._sends, "sent and never received"), (self._receives, "received and never sent")):
            left = {channel: list(queue) for channel, queue in ends.items() if queue}
            if left:
                raise ValueError(f"messages are {words}: {left}")

    def _advance(self, pp_rank: int) -> list[int]:
        """Run a rank's program until it has to wait. Returns the ranks that have received a message meanwhile."""
        program, woken = self._programs[pp_rank], list[int]()
        while self._places[pp_rank] < len(program):
            instruction = program[self._places[pp_rank]]
            if instruction.kind is Kind.SEND:
                woken += self._post(self._sends, (pp_rank, instruction.peer), instruction.message)
            elif instruction.kind is Kind.RECEIVE:
                woken += self._post(self._receives, (instruction.peer, pp_rank), instruction.message)
            elif instruction.kind in COMPUTING:
                operation = computation(instruction)
                assert operation is not None
                if not self._landed.issuperset(enters(operation, self._shape)):
                    break
                self._landed.update(message for message in leaves(operation, self._shape) if stays(message, self._shape))
            self._places[pp_rank] += 1
        return woken

    def _post(self, ends: dict[Channel, deque[Message]], channel: Channel, message: Message) -> list[int]:
        ends.setdefault(channel, deque()).append(message)
        sends, receives = self._sends.get(channel), self._receives.get(channel)
        if not sends or not receives:
            return []
        while sends and receives:
            sent, received = sends.popleft(), receives.popleft()
            if sent != received:
                raise ValueError(
                    f"on the way from pp_rank {channel[0]} to {channel[1]} {sent} is sent where {received} is received"
                )
            self._landed.add(received)
        return [channel[1]]


def _check_waits(programs: Sequence[Program], shape: StepShape) -> None:
    _Walk(programs, shape).run()


def _check_leaves(program: Program, leaf_sizes: Sequence[int]) -> None:
    """Check that a leaf's gradients follow each other, in ascending order: a stage sums one leaf at a time (`step.gradients`)."""
    leaf_of = [leaf for leaf, size in enumerate(leaf_sizes) for _ in range(size)]
    by_stage: dict[int, list[int]] = {}
    for instruction in program.compute:
        if instruction.kind in GIVES_WEIGHT_GRADIENT and instruction.slice == 0:
            by_stage.setdefault(instruction.stage, []).append(instruction.micro_batch)
    for stage, order in sorted(by_stage.items()):
        for before, micro_batch in pairwise([-1, *order]):
            first_of_leaf = micro_batch == 0 or leaf_of[micro_batch - 1] != leaf_of[micro_batch]
            if not first_of_leaf and before != micro_batch - 1:
                raise ValueError(
                    f"schedule closes the gradient of micro-batch {micro_batch} on stage {stage} "
                    f"{f'after that of {before}' if before >= 0 else 'first'}: it belongs to one leaf with micro-batch "
                    f"{micro_batch - 1}, whose gradient must come right before, or gradients are lost; order them so, "
                    "or set training.reduction_leaves to the number of micro-batches"
                )


def _check_slices(program: Program, slices: int) -> None:
    """Check that a micro-batch's slices are added to its leaf last to first, with no other micro-batch between them."""
    before: dict[int, tuple[int, int]] = {}
    for instruction in program.compute:
        stage, micro_batch, part = instruction[1:4]
        if instruction.kind in GIVES_WEIGHT_GRADIENT:
            if part + 1 < slices and before.get(stage) != (micro_batch, part + 1):
                raise ValueError(
                    f"schedule closes the gradient of micro-batch {micro_batch} slice {part} on stage {stage} and not right "
                    f"before it that of slice {part + 1}; order a micro-batch's slices so, last to first"
                )
            before[stage] = micro_batch, part


def _words(operation: Operation | Instruction) -> str:
    part = f" slice {operation.slice}" if operation.slice else ""
    return f"{operation.kind} of micro-batch {operation.micro_batch}{part} on stage {operation.stage}"
