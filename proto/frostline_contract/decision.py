"""The record of a decision on freezing. Immutable, and the same on both sides of the wire."""

from typing import Literal

from frostline_contract.record import Frozen


class Decision(Frozen):
    """A policy's verdict on one interval, bound to the step at which it takes effect (docs/protocols.md 6.2).

    Attributes:
        number: from 1, one an interval ('no change' is a decision too).
        interval: the interval whose statistics the policy read.
        effective_step: the first step computed under the decision.
        freeze_point: index of the first trainable unit from then on.
        lineage: the lineage that the decision belongs to; for a rollback, the lineage that the rollback opens.
        decided_in: the run's lineage when the decision was made, in which workers adopt it; for a rollback, the lineage that
            ends. (decided_in, number) identifies a decision, since a lineage decides each interval once.
        reason: the policy's own words.
        rollback_to_step: for a rollback, the checkpointed step whose state comes back before `effective_step` would be
            computed; -1 otherwise.
        void: the decision arrived too late and changed nothing.
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
