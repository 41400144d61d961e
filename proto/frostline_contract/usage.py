"""Traffic and memory of workers: bytes sent and received by purpose, and resident bytes by kind.

The record of an interval's last step has these counts for each worker. A collective is counted as if it ran over a ring, whatever
algorithm the library uses. So the counts agree with the planner's formulas, and all bytes sent equal all bytes received.
"""

from enum import StrEnum

from frostline_contract.record import Frozen


class Way(StrEnum):
    """The purpose of traffic.

    Attributes:
        DP_GRADIENTS: sums of gradients over replicas.
        DP_WEIGHTS: weights that other replicas own.
        PP: activations and their gradients between stages, and gradients of a tied matrix.
        TP: within a tensor group: partial results, gradients of tiles, and gathers of what crosses stages.
        BUDDIES: gradients sent to buddies.
        MOVES: state at a switch.
        CACHE: boundary activations.
        OTHER: votes, results of evaluations, comparisons, audits, measurements of links.
    """

    DP_GRADIENTS = "dp_gradients"
    DP_WEIGHTS = "dp_weights"
    PP = "pp"
    TP = "tp"
    BUDDIES = "buddies"
    MOVES = "moves"
    CACHE = "cache"
    OTHER = "other"


class Held(StrEnum):
    """The kind of resident bytes.

    Attributes:
        WEIGHTS: of the worker's stages, owned or copied.
        GRADIENTS: buffers of gradient sums.
        MOMENTS: of the pieces that the worker owns.
        BUDDIES: state kept as a buddy, without weights that the worker computes with anyway.
        ACTIVATIONS: peak of a step's tensors beyond weights, gradients and moments; absent where tensors are not counted.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    MOMENTS = "moments"
    BUDDIES = "buddies"
    ACTIVATIONS = "activations"


WAY_OF_AXIS = {"dp": Way.DP_GRADIENTS, "pp": Way.PP}
"""The default purpose of traffic along an axis of the mesh. Axes that are not named here cut tensors (TP)."""


class WorkerUsage(Frozen):
    """One worker's traffic and memory, in bytes.

    Attributes:
        sent, received: by `Way`, since the previous record with usage.
        resident: by `Held`.
    """

    worker_id: str
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    resident: dict[str, int] = {}
