"""The operations of a step, of which schedules and the programs lowered from them consist."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kind of an operation.

    The first four compute; schedules consist of these alone. BACKWARD is INPUT_GRADIENT and WEIGHT_GRADIENT of a micro-batch in
    one. Lowering adds the others: messages between pipeline ranks, the sum of a stage's gradient over the replicas, and the
    gathers of weights for a computation that only other replicas have.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    GATHER = "gather"


COMPUTING = frozenset((Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT))
"""Kinds that a schedule may consist of."""
GIVES_INPUT_GRADIENT = frozenset((Kind.BACKWARD, Kind.INPUT_GRADIENT))
"""Kinds that give the previous stage the gradient of its output."""
GIVES_WEIGHT_GRADIENT = frozenset((Kind.BACKWARD, Kind.WEIGHT_GRADIENT))
"""Kinds after which a micro-batch's activations are free and its gradients are in the sum."""


class Operation(NamedTuple):
    """One computation of one micro-batch (counted within the replica), or of one slice of it, through one stage."""

    kind: Kind
    stage: int
    micro_batch: int
    slice: int = 0


Triple = tuple[bool, int, int]
"""(forward, stage, micro-batch): short form of an operation in schedules that split no backward and slice no micro-batch."""
Order = Callable[..., Sequence[Operation | Triple]]
"""(pp_rank, pp_degree, virtual_stages, micro-batches of the replica) -> the operations of that pipeline rank, in order. An order
that supports slices has a fifth argument, the number of slices, with default 1."""


def typed(given: Operation | Triple) -> Operation:
    """The operation that a schedule's element stands for. Raises ValueError where the element is no compute operation."""
    if isinstance(given[0], bool):
        return Operation(Kind.FORWARD if given[0] else Kind.BACKWARD, given[1], given[2])
    operation = Operation(*given)
    if operation.kind not in COMPUTING:
        raise ValueError(
            f"a schedule holds {operation}; it may hold {', '.join(sorted(COMPUTING))} only: messages come by lowering"
        )
    return operation


def input_of(operation: Operation, last_stage: int) -> tuple[object, ...] | None:
    """The operation of another stage whose result this one needs, as (is forward, stage, micro-batch, slice); None: there is
    none."""
    if operation.kind is Kind.FORWARD and operation.stage > 0:
        return (True, operation.stage - 1, *operation[2:])
    if operation.kind in GIVES_INPUT_GRADIENT and operation.stage < last_stage:
        return (False, operation.stage + 1, *operation[2:])
    return None
