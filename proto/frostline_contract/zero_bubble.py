"""Zero-bubble orders (Qi et al. 2024): the gradients of inputs go upstream at once, those of weights fill the waits.

An order is found by running the pipeline on paper in whole units of time: forward, gradient of inputs and gradient of weights of
a slice take one each. So it is a function of the shape alone, the same on every member. Freezing is part of the shape: a frozen
stage has one forward a micro-batch, the first stage that learns has undivided backwards, since nobody waits for a gradient
of its inputs, and the order is found anew for every first stage that learns.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache, partial

from frostline_contract.operations import Kind, Operation

Held = tuple[int, int]
"""(times the stages that learn, less): how many micro-batches a rank may hold; see `zero_bubble`."""
H1: Held = (1, 0)
H2: Held = (2, 1)


def zero_bubble(
    held: Held, pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1, first_learning: int = 0
) -> list[Operation]:
    """The order of one pipeline rank, one stage a rank.

    held: (a, b): a rank holds at most a * p - b micro-batches, of which p is the number of stages that learn; over slices as many
    slices, and those of one micro-batch. H1 holds as much as 1F1B does on its first rank. H2 holds nearly twice that, and where
    all operations take equal time no rank waits between its first and its last one.

    Raises:
        ValueError: for virtual stages.
    """
    if virtual_stages != 1:
        raise ValueError(f"zero-bubble schedules run one stage a rank, virtual_stages is {virtual_stages}; set it to 1")
    return list(_orders(held, pp_degree, num_microbatches, slices, first_learning)[pp_rank])


h1, h2 = partial(zero_bubble, H1), partial(zero_bubble, H2)


@lru_cache(maxsize=256)
def _orders(
    held: Held, pp_degree: int, num_microbatches: int, slices: int, first_learning: int
) -> tuple[tuple[Operation, ...], ...]:
    learning = pp_degree - first_learning
    most = held[0] * learning - held[1] + slices - 1
    return PaperRun(pp_degree, num_microbatches, slices, first_learning, most).run()


@dataclass
class _Rank:
    """A pipeline rank on paper. forwards, gradients: still to be done, in order. late: gradients that nobody waits for. free: when
    the operation under way ends. holds: slices that are forward and not closed. order: what it has begun, in order.
    """

    forwards: deque[Operation]
    gradients: deque[Operation]
    late: deque[Operation]
    free: int = 0
    holds: int = 0
    order: list[Operation] = field(default_factory=list)


class PaperRun:
    """The whole pipeline on paper. most_held: slices that a rank may hold; at least those of one micro-batch on every rank that
    learns, so that its first gradient can come.
    """

    def __init__(self, pp_degree: int, num_microbatches: int, slices: int, first_learning: int, most_held: int) -> None:
        self._last, self._first_learning = pp_degree - 1, first_learning
        self._slices, self._most_held = slices, most_held
        self._ends: dict[tuple[bool, int, int, int], int] = {}
        self._ranks = [self._rank(stage, num_microbatches) for stage in range(pp_degree)]

    def run(self) -> tuple[tuple[Operation, ...], ...]:
        """The orders of all pipeline ranks."""
        now = 0
        while any(rank.forwards or rank.gradients or rank.late for rank in self._ranks):
            for rank in self._ranks:
                if rank.free <= now:
                    self._go_on(rank, now)
            now += 1
        return tuple(tuple(rank.order) for rank in self._ranks)

    def _rank(self, stage: int, num_microbatches: int) -> _Rank:
        numbers, parts = range(num_microbatches), range(self._slices)
        if stage < self._first_learning:
            return _Rank(deque(Operation(Kind.FORWARD, stage, m) for m in numbers), deque(), deque())
        forwards = deque(Operation(Kind.FORWARD, stage, m, part) for m in numbers for part in parts)
        kind = Kind.INPUT_GRADIENT if stage > self._first_learning else Kind.BACKWARD
        backwards = deque(Operation(kind, stage, m, part) for m in numbers for part in reversed(parts))
        # Undivided backwards serve nobody; on the last rank no forward serves anybody either, and backwards free memory.
        at_once = kind is Kind.INPUT_GRADIENT or stage == self._last
        return _Rank(forwards, backwards, deque()) if at_once else _Rank(forwards, deque(), backwards)

    def _go_on(self, rank: _Rank, now: int) -> None:
        """Begin what helps the other ranks most: a gradient, else a forward, else what nobody waits for."""
        if rank.gradients and self._may_begin(rank.gradients[0], now):
            operation = rank.gradients.popleft()
        elif rank.forwards and self._has_room(rank) and self._may_begin(rank.forwards[0], now):
            operation = rank.forwards.popleft()
        elif rank.late and self._may_begin(rank.late[0], now):
            operation = rank.late.popleft()
        else:
            return
        kind, stage, micro_batch, part = operation
        learns = stage >= self._first_learning
        rank.free = now + (2 if kind is Kind.BACKWARD else 1 if learns else self._slices)
        rank.order.append(operation)
        if kind is Kind.INPUT_GRADIENT:
            rank.late.append(operation._replace(kind=Kind.WEIGHT_GRADIENT))
        elif learns:
            rank.holds += 1 if kind is Kind.FORWARD else -1
        if kind is not Kind.WEIGHT_GRADIENT:
            self._ends[kind is Kind.FORWARD, stage, micro_batch, part] = rank.free

    def _has_room(self, rank: _Rank) -> bool:
        return rank.forwards[0].stage < self._first_learning or rank.holds < self._most_held

    def _may_begin(self, operation: Operation, now: int) -> bool:
        """Whether what another stage, or on the last one the forward, gives rise to is there."""
        kind, stage, micro_batch, part = operation
        if kind is Kind.WEIGHT_GRADIENT or (kind is Kind.FORWARD and stage == 0):
            return True
        if kind is Kind.FORWARD:  # what a frozen stage gives comes whole, with the first slice
            needed = (True, stage - 1, micro_batch, part if stage > self._first_learning else 0)
        else:
            needed = (stage == self._last, min(stage + 1, self._last), micro_batch, part)
        return self._ends.get(needed, now + 1) <= now
