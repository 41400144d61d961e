"""How the replicas of a stage share its state out (`placement.shard`): who owns what changes, and no bit of any result.

none  Every replica owns the whole state of its stages: weights and optimizer moments as often as there are replicas.
step  Each range of a unit's state (`training.state_ranges`) has one replica for its owner, which alone holds its moments, gets
      the sum of its gradients and updates it. Before the next step all replicas get its weights: a copy, and no state.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

NONE, STEP = "none", "step"
Shard = Annotated[Literal["none", "step"], BeforeValidator(lambda value: value or NONE)]
"""Of a placement; a message of before there was any choice says nothing."""
NOT_YET = {"use": "weights are gathered once a step, not at each use; step shares out moments, sums of gradients and updates"}
"""What users know by these names, and why it is refused."""


def refuse_unknown_shard(shard: Any) -> Any:
    """Raise ValueError for a way of sharing state out that has a name and is not built."""
    if shard in NOT_YET:
        raise ValueError(f"is {shard}, which is not built: {NOT_YET[shard]}")
    return shard


def shard_problem(shard: str, state_ranges: int, dp_degree: int, field: str = "dp_degree") -> str:
    """Why state cannot be shared out over so many replicas; empty where it can. field: what says how many there are."""
    if shard == NONE or dp_degree <= state_ranges:
        return ""
    return (
        f"{field} {dp_degree} exceeds training.state_ranges {state_ranges} with placement.shard {shard}: each replica owns a "
        "range of every unit; raise state_ranges in a new run, lower the degree, or set shard to none"
    )
