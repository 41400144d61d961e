"""State sharding: how the state of a stage is divided among its replicas (`placement.shard`). It changes no bit of any result.

none  Every replica owns the whole state of its stages, so weights and optimizer moments exist once in each replica.
step  Each range of a unit's state (`training.state_ranges`) is owned by one replica, which alone holds the range's moments,
      receives the sum of its gradients and updates it. Before the next step all replicas receive the updated weights. These
      copies are not owned state. Where a group of workers computes each stage of a replica, all members of the group do so.
use   As step, and a replica also holds only its own ranges of the weights of units that learn. Before each use of such a unit,
      forward and backward of each micro-batch, the replicas gather it, and free it afterwards.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator

NONE, STEP, USE = "none", "step", "use"
Shard = Annotated[Literal["none", "step", "use"], BeforeValidator(lambda value: value or NONE)]
"""The field of a placement; empty, in messages of versions without the choice, means "none"."""


def shard_problem(shard: str, state_ranges: int, dp_degree: int, field: str = "dp_degree") -> str:
    """Why state cannot be divided among dp_degree replicas; empty where it can. field: name of the degree, for the text."""
    if shard not in (STEP, USE) or dp_degree <= state_ranges:
        return ""
    return (
        f"{field} {dp_degree} exceeds training.state_ranges {state_ranges} with placement.shard {shard}: each replica owns a "
        "range of every unit; raise state_ranges in a new run, lower the degree, or set shard to none"
    )
