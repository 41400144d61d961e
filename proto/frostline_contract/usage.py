"""What a worker sent, received and held: bytes by what they travelled for, and resident bytes by kind.

An interval's last step has it in its record, of each worker. What travels in a collective counts as every member of a ring
carries it, whatever way the library takes: so the counts are those of the formulas, and all that members sent others received.
"""

from enum import StrEnum

from frostline_contract.record import Frozen


class Way(StrEnum):
    """What bytes travelled for.

    DP_GRADIENTS: sums over replicas. DP_WEIGHTS: weights that other replicas own. PP: activations and their gradients between
    stages, and the two uses of a tied matrix. TP: partial results within a tensor group. BUDDIES: gradients for members that
    keep copies. MOVES: state at a switch. CACHE: boundary activations. OTHER: votes, evaluations' figures, comparisons, audits,
    measured links.
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
    """What resident bytes are.

    WEIGHTS: of the stages computed here, owned or copied. GRADIENTS: buffers of the sums. MOMENTS: of the pieces owned.
    BUDDIES: all that is kept for others, beyond weights that are computed with anyway. ACTIVATIONS: what a step's tensors took
    beyond weights, gradients and moments at their fullest; not told where tensors are not counted.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    MOMENTS = "moments"
    BUDDIES = "buddies"
    ACTIVATIONS = "activations"


WAY_OF_AXIS = {"dp": Way.DP_GRADIENTS, "pp": Way.PP}
"""Of a line along an axis of the mesh, unless its user says otherwise; the other axes cut tensors."""


class WorkerUsage(Frozen):
    """One worker's, in bytes. sent, received: since the interval's record before, by `Way`. resident: by `Held`."""

    worker_id: str
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    resident: dict[str, int] = {}
