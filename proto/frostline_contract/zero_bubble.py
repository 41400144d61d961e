"""Zero-bubble orders (Qi et al. 2024): gradients of inputs are sent upstream at once; gradients of weights fill the waits.

An order is found by simulating the pipeline in whole units of time: forward, gradient of inputs and gradient of weights of a
slice take one unit each. So it is a function of the shape alone, the same on every member. The frozen stages are part of the
shape, and each number of frozen stages has its own order: a frozen stage has one forward a micro-batch, and the first stage that
learns has undivided backwards, since no stage waits for the gradient of its input.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from frostline_contract.operations import Kind, Operation
from frostline_contract.shape import stages_of


@dataclass(frozen=True)
class ZeroBubble:
    """A zero-bubble order, defined by how much a pipeline rank may hold.

    A rank may hold times * p + more slices of micro-batches, where p is the number of stages that learn. Where micro-batches are
    sliced, it may hold the slices of one more micro-batch for each of its stages.

    Attributes:
        times, more: as above.
        folded: whether each rank has two stages, which lie in a V; else each rank has one stage.
    """

    times: float
    more: int
    folded: bool = False

    def __call__(
        self, pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1, first_learning: int = 0
    ) -> list[Operation]:
        """The order of one pipeline rank. Arguments as in `Schedule.operations`.

        Raises:
            ValueError: the order is not made for this number of virtual stages.
        """
        wanted = 2 if self.folded else 1
        if virtual_stages != wanted:
            raise ValueError(f"this zero-bubble schedule runs {wanted} stages a rank, virtual_stages is {virtual_stages}")
        return list(self._orders(pp_degree, num_microbatches, slices, first_learning)[pp_rank])

    @lru_cache(maxsize=16)  # noqa: B019  the five built-in ones live as long as the process
    def _orders(
        self, pp_degree: int, num_microbatches: int, slices: int, first_learning: int
    ) -> tuple[tuple[Operation, ...], ...]:
        """The fastest of a few orders, which divide a rank's memory and time between its stages in different ways."""
        each = 2 if self.folded else 1
        stages = [stages_of(pp_rank, pp_degree, each, self.folded) for pp_rank in range(pp_degree)]
        learning = pp_degree * each - first_learning
        room = int(self.times * learning) + self.more + each * (slices - 1)
        ways = [(0, False)] if each == 1 else list(product((slices, slices - 1, slices + 1), (False, True)))
        runs = [SimulatedRun(stages, num_microbatches, slices, first_learning, room, *way) for way in ways]
        found = [orders for orders in (run.run() for run in runs) if orders is not None]
        return min(found, key=lambda orders: orders[0])[1]


H1 = ZeroBubble(1, 0)
"""Each rank holds as much as 1F1B's first rank."""
H2 = ZeroBubble(2, -1)
"""Each rank holds nearly twice as much as H1: with equal times no rank waits between its first and its last operation."""
V_ZERO, V_HALF, V_MIN = ZeroBubble(1, 0, True), ZeroBubble(1 / 2, 1, True), ZeroBubble(1 / 3, 2, True)
"""Each rank holds as much as 1F1B's first rank, or half of that and a bit more, or a third of it and a bit more. A slice takes
half as much memory in a stage as with 1F1B, since stages are half as long."""


@dataclass
class _Rank:
    """A pipeline rank in the simulation.

    Attributes:
        forwards, gradients: operations still to be done, by stage, in the order in which stages are tried.
        undivided: backwards that no other stage waits for.
        late: gradients of weights, in the order in which they became possible.
        free: when the operation under way ends.
        holds: by stage, slices whose forward is done and whose backward is not complete.
        order: operations begun so far, in order.
    """

    forwards: list[deque[Operation]]
    gradients: list[deque[Operation]]
    undivided: deque[Operation]
    late: deque[Operation] = field(default_factory=deque)
    free: int = 0
    holds: Counter[int] = field(default_factory=Counter)
    order: list[Operation] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return not (any(self.forwards) or any(self.gradients) or self.undivided or self.late)


class SimulatedRun:
    """A simulation of the whole pipeline.

    Args:
        stages: the numbers of the stages of each pipeline rank, by pipeline rank.
        num_microbatches: of a step.
        slices: of each micro-batch.
        first_learning: number of the first stage that learns.
        room: slices that a rank may hold.
        kept: the part of `room` reserved for the rank's last stage, so that slices that have come far can be finished.
        earlier_first: whether the earlier stage's gradient comes first where two stages of a rank have one.
    """

    def __init__(
        self, stages: Sequence[Sequence[int]], num_microbatches: int, slices: int, first_learning: int, room: int,
        kept: int, earlier_first: bool,
    ) -> None:  # fmt: skip
        self._last, self._first_learning = sum(map(len, stages)) - 1, first_learning
        self._slices, self._room, self._kept = slices, room, kept
        self._ends: dict[tuple[bool, int, int, int], int] = {}
        self._ranks = [self._rank(own, num_microbatches, earlier_first) for own in stages]

    def run(self) -> tuple[int, tuple[tuple[Operation, ...], ...]] | None:
        """(units of time, the orders of all pipeline ranks); None where the simulation deadlocks."""
        now = 0
        while not all(here.is_done for here in self._ranks):
            begun = [self._go_on(here, now) for here in self._ranks if here.free <= now]
            if not any(begun) and all(here.free <= now for here in self._ranks):
                return None
            now += 1
        return max(here.free for here in self._ranks), tuple(tuple(here.order) for here in self._ranks)

    def _rank(self, stages: Sequence[int], num_microbatches: int, earlier_first: bool) -> _Rank:
        numbers, parts = range(num_microbatches), range(self._slices)
        forwards, gradients, undivided = [], [], deque[Operation]()
        for stage in reversed(stages):
            if stage < self._first_learning:
                forwards.append(deque(Operation(Kind.FORWARD, stage, m) for m in numbers))
                continue
            forwards.append(deque(Operation(Kind.FORWARD, stage, m, part) for m in numbers for part in parts))
            kind = Kind.INPUT_GRADIENT if stage > self._first_learning else Kind.BACKWARD
            backwards = deque(Operation(kind, stage, m, part) for m in numbers for part in reversed(parts))
            # No rank waits for undivided backwards. On the last stage none waits for forwards either, and backwards free memory.
            if kind is Kind.INPUT_GRADIENT or stage == self._last:
                gradients.append(backwards)
            else:
                undivided = backwards
        return _Rank(forwards, gradients[::-1] if earlier_first else gradients, undivided)

    def _go_on(self, here: _Rank, now: int) -> bool:
        """Begin the operation that helps other ranks most: a gradient, else a forward, else one that no rank waits for.

        Returns False where the rank can begin nothing.
        """
        operation = self._next(here, now)
        if operation is None:
            return False
        kind, stage, micro_batch, part = operation
        learns = stage >= self._first_learning
        here.free = now + (2 if kind is Kind.BACKWARD else 1 if learns else self._slices)
        here.order.append(operation)
        if kind is Kind.INPUT_GRADIENT:
            here.late.append(operation._replace(kind=Kind.WEIGHT_GRADIENT))
        elif learns:
            here.holds[stage] += 1 if kind is Kind.FORWARD else -1
        if kind is not Kind.WEIGHT_GRADIENT:
            self._ends[kind is Kind.FORWARD, stage, micro_batch, part] = here.free
        return True

    def _next(self, here: _Rank, now: int) -> Operation | None:
        for queue in here.gradients:
            if queue and self._is_there(queue[0], now):
                return queue.popleft()
        for place, queue in enumerate(here.forwards):
            if queue and self._has_room(here, queue[0], self._kept if place else 0) and self._is_there(queue[0], now):
                return queue.popleft()
        if here.late:
            return here.late.popleft()
        return here.undivided.popleft() if here.undivided and self._is_there(here.undivided[0], now) else None

    def _has_room(self, here: _Rank, forward: Operation, kept: int) -> bool:
        stage = forward.stage
        is_free = here.holds.total() < self._room and here.holds[stage] < self._room - kept
        return stage < self._first_learning or is_free

    def _is_there(self, operation: Operation, now: int) -> bool:
        """Whether the operation's input exists: another stage's result or, on the last stage, its own forward's."""
        kind, stage, micro_batch, part = operation
        if kind is Kind.FORWARD and stage == 0:
            return True
        if kind is Kind.FORWARD:  # a frozen stage sends a whole micro-batch, with the first slice
            needed = (True, stage - 1, micro_batch, part if stage > self._first_learning else 0)
        else:
            needed = (stage == self._last, min(stage + 1, self._last), micro_batch, part)
        return self._ends.get(needed, now + 1) <= now
