"""A schedule's figures for the planner: micro-batches in flight (memory) and the bubble (time).

A schedule brings these figures as formulas. For a schedule without formulas they are counted by a simulation of all pipeline
ranks' orders, here called simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from frostline_contract.operations import Kind, Operation, input_of

InFlight = Callable[[int, int, int, int], float]
"""(pp_rank, pp_degree, virtual_stages, micro-batches) -> micro-batches whose activations the rank holds at once, on average over
its stages."""
SlicesInFlight = Callable[[int, int, int, int, int], float]
"""The same arguments and the slices of a micro-batch -> slices whose activations the rank holds at once, on average over its
stages."""
Bubble = Callable[[int, Sequence[float], Sequence[float], int, int], float]
"""(pp_rank, forward, backward, virtual_stages, micro-batches) -> seconds of a step in which that pipeline rank waits.

forward, backward: seconds of a micro-batch by pipeline rank, through all its stages, sending included.
"""


Operations = Callable[[int, int, int, int], list[Operation]]
"""(pp_rank, pp_degree, virtual_stages, micro-batches) -> `Schedule.operations`."""


@dataclass(frozen=True)
class Figures:
    """The cost of a schedule, as functions of the shape.

    Attributes:
        from_the_end: `in_flight` depends on pp_degree - pp_rank alone, so that one table of the planner serves pipelines of every
            depth.
        fills: the bubble is at least (the time in which one micro-batch fills the pipeline) / virtual_stages. The planner uses
            this bound to leave shapes out.
        slices_in_flight: None where the schedule does not support slices, or they are counted.
    """

    in_flight: InFlight
    bubble: Bubble
    from_the_end: bool = False
    fills: bool = True
    slices_in_flight: SlicesInFlight | None = None


def counted_figures(operations: Operations) -> Figures:
    """The figures of a schedule without formulas, counted by simulation."""
    return Figures(
        lambda pp_rank, pp_degree, virtual_stages, micro_batches: _peak(
            operations, pp_rank, pp_degree, virtual_stages, micro_batches
        ),
        lambda pp_rank, forward, backward, virtual_stages, micro_batches: _waiting(
            operations, pp_rank, tuple(forward), tuple(backward), virtual_stages, micro_batches
        ),
        fills=False,
    )


@lru_cache(maxsize=4096)
def counted_slices_in_flight(
    operations: Callable[..., list[Operation]],
    pp_rank: int,
    pp_degree: int,
    virtual_stages: int,
    micro_batches: int,
    slices: int,
) -> float:
    """Slices whose activations a pipeline rank holds at once, on average over its stages (`SlicesInFlight`), counted.

    Args:
        operations: `Schedule.operations` of the schedule.
        micro_batches: of a step.
        slices: of a micro-batch.
    """
    return held_at_most(operations(pp_rank, pp_degree, virtual_stages, micro_batches, slices), lambda _: 1.0) / virtual_stages


@lru_cache(maxsize=4096)
def _peak(operations: Operations, pp_rank: int, pp_degree: int, virtual_stages: int, micro_batches: int) -> float:
    """The most micro-batches that a pipeline rank has begun and not yet closed, on average over its stages.

    Args:
        operations: `Schedule.operations` of the schedule.
        virtual_stages: stages of each pipeline rank.
        micro_batches: of a step.
    """
    return held_at_most(operations(pp_rank, pp_degree, virtual_stages, micro_batches), lambda _: 1.0) / virtual_stages


def held_at_most(
    order: Sequence[Operation], weight: Callable[[Operation], float], between: Callable[[Operation], float] = lambda _: 0.0
) -> float:
    """The most that a pipeline rank holds at once for later backwards, in the unit of `weight`.

    Args:
        order: the rank's operations.
        weight: what an operation's forward keeps until its backward; 0 for an operation of a frozen stage.
        between: what is kept in addition between the two parts of a split backward.
    """
    held = most = 0.0
    for operation in order:
        if operation.kind is Kind.FORWARD:
            held += weight(operation)
            most = max(most, held)
        elif operation.kind is Kind.INPUT_GRADIENT:
            held += between(operation)
            most = max(most, held)
        else:
            held -= weight(operation) + (between(operation) if operation.kind is Kind.WEIGHT_GRADIENT else 0.0)
    return most


@lru_cache(maxsize=256)
def _waiting(
    operations: Operations,
    pp_rank: int,
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    virtual_stages: int,
    micro_batches: int,
) -> float:
    """Seconds of a step in which a pipeline rank waits: the step's length without the rank's own work.

    Args:
        forward, backward: seconds of a micro-batch by pipeline rank, through all its stages.
        micro_batches: of a step.
    """
    pp_degree = len(forward)
    orders = [operations(r, pp_degree, virtual_stages, micro_batches) for r in range(pp_degree)]
    seconds = max(one.end for one in timeline(orders, forward, backward, virtual_stages))
    return max(0.0, seconds - micro_batches * (forward[pp_rank] + backward[pp_rank]))


class Timed(NamedTuple):
    """An operation in simulation; `start` and `end` are seconds since the step's start."""

    pp_rank: int
    operation: Operation
    start: float
    end: float


def timeline(
    orders: Sequence[Sequence[Operation]], forward: Sequence[float], backward: Sequence[float], virtual_stages: int = 1
) -> list[Timed]:
    """A simulated step: every operation begins as soon as its rank is free and its inputs exist.

    A frozen stage, which has no backward, computes whole micro-batches; its rank's backward takes no time.

    Args:
        orders: the operations of each pipeline rank of a whole pipeline.
        forward, backward: seconds of a micro-batch by pipeline rank, through all its stages.
        virtual_stages: stages of each rank.

    Raises:
        ValueError: the orders wait for ever.
    """
    slices = 1 + max((operation.slice for order in orders for operation in order), default=0)
    learning = _learning(orders)

    def seconds(pp_rank: int, operation: Operation) -> float:
        parts = slices if operation.stage in learning else 1
        whole = forward[pp_rank] if operation.kind is Kind.FORWARD else backward[pp_rank]
        divided = operation.kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
        return whole / (virtual_stages * parts * (2 if divided else 1))

    return timed(orders, seconds)


OperationSeconds = Callable[[int, Operation], float]
"""(pp_rank, operation) -> seconds, sending included."""
End = Callable[[int, float, float], float]
"""(pp_rank, start, seconds of work) -> the moment when the rank has done the work, if it does nothing else meanwhile."""


def at_once(_: int, start: float, seconds: float) -> float:
    """The end of work on a rank that nothing halts (`End`)."""
    return start + seconds


def timed(orders: Sequence[Sequence[Operation]], seconds: OperationSeconds, end: End = at_once) -> list[Timed]:
    """A simulated step in which each operation has its own duration; see `timeline`.

    Args:
        orders: the operations of each pipeline rank of a whole pipeline.
        seconds: each operation's work.
        end: called for each rank's operations in their order; differs where something halts ranks.

    Raises:
        ValueError: the orders wait for ever.
    """
    last_stage = max((operation.stage for order in orders for operation in order), default=0)
    learning = _learning(orders)
    ends: dict[tuple[object, ...], float] = {}
    places, clocks = [0] * len(orders), [0.0] * len(orders)
    done: list[Timed] = []
    left = sum(len(order) for order in orders)
    while left > len(done):
        before = len(done)
        for r, order in enumerate(orders):
            while places[r] < len(order):
                operation = order[places[r]]
                needed = input_of(operation, last_stage)
                if needed is not None and operation.kind is Kind.FORWARD and operation.stage - 1 not in learning:
                    needed = (*needed[:3], 0)
                if needed is not None and needed not in ends:
                    break
                start = max(clocks[r], ends.get(needed, 0.0) if needed is not None else 0.0)
                clocks[r] = end(r, start, seconds(r, operation))
                if operation.kind is not Kind.WEIGHT_GRADIENT:
                    ends[(operation.kind is Kind.FORWARD, *operation[1:])] = clocks[r]
                done.append(Timed(r, operation, start, clocks[r]))
                places[r] += 1
        if len(done) == before:
            waiting = {r: order[place] for r, (place, order) in enumerate(zip(places, orders, strict=True)) if place < len(order)}
            raise ValueError(f"schedule waits for ever: {waiting}")
    return done


def _learning(orders: Sequence[Sequence[Operation]]) -> set[int]:
    """Stages that have a backward."""
    return {operation.stage for order in orders for operation in order if operation.kind is not Kind.FORWARD}
