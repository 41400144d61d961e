"""A decision: what a policy says of one interval. Immutable, and the same on both sides of the wire."""

from typing import Literal

from frostline_contract.record import Frozen


class Decision(Frozen):
    """A policy's verdict on one interval, bound to the step at which it takes effect (docs/protocols.md 6.2).

    number: from 1, one an interval ('no change' too). interval: the interval that it read.
    effective_step: the first step computed under it. freeze_point: index of the first trainable unit from then on.
    lineage: the one that it belongs to; for a rollback, the one that it opens. decided_in: the run's lineage when it was
    decided, in which workers adopt it; for a rollback, the one that it ends. (decided_in, number) names a decision: a lineage
    decides each interval once. reason: the policy's own words.
    rollback_to_step: for a rollback, the checkpointed step whose state comes back before `effective_step` would be
    computed; -1 otherwise. void: it did not arrive in time and changed nothing.
    """

    number: int
    interval: int
    effective_step: int
    freeze_point: int
    lineage: int = 0
    decided_in: int = 0
    kind: Literal["keep", "freeze", "unfreeze", "rollback"] = "keep"
    reason: str = ""
    policy: str = ""
    rollback_to_step: int = -1
    void: bool = False
