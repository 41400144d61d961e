"""State sharding: how the state of a stage is divided among its replicas (`placement.shard`). It changes no bit of any result.

none  Every replica owns the whole state of its stages, so weights and optimizer moments exist once in each replica.
step  Each range of a unit's state (`training.state_ranges`) is owned by one replica, which alone holds the range's moments,
      receives the sum of its gradients and updates it. Before the next step all replicas receive the updated weights. These
      copies are not owned state. Where a group of workers computes each stage of a replica, all members of the group do so.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

NONE, STEP = "none", "step"
Shard = Annotated[Literal["none", "step"], BeforeValidator(lambda value: value or NONE)]
"""The field of a placement; empty, in messages of versions without the choice, means "none"."""
NOT_YET = {"use": "weights are gathered once a step, not at each use; step shares out moments, sums of gradients and updates"}
"""Names of ways that users may know from elsewhere, and why each is refused."""


def refuse_unknown_shard(shard: Any) -> Any:
    """Raise ValueError for a way of sharding that is known and not implemented."""
    if shard in NOT_YET:
        raise ValueError(f"is {shard}, which is not built: {NOT_YET[shard]}")
    return shard


def shard_problem(shard: str, state_ranges: int, dp_degree: int, field: str = "dp_degree") -> str:
    """Why state cannot be divided among dp_degree replicas; empty where it can. field: name of the degree, for the text."""
    if shard != STEP or dp_degree <= state_ranges:
        return ""
    return (
        f"{field} {dp_degree} exceeds training.state_ranges {state_ranges} with placement.shard {shard}: each replica owns a "
        "range of every unit; raise state_ranges in a new run, lower the degree, or set shard to none"
    )
