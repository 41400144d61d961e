"""The uses of a worker-second, and which phase's time goes to which (docs/run-directory.md has the table for users)."""

from collections.abc import Mapping
from enum import StrEnum

from frostline_contract.phases import Phase

SECONDS_MAX = 1e10
"""A worker's life in one phase is shorter: three centuries."""


class Use(StrEnum):
    """What a worker's second went to. Each second of a worker, from its admission to its leaving, has exactly one.

    BUBBLE: in a step, but blocked on other members: the pipeline's bubble, and slower members. LOST: to failures and rollbacks.
    RESHAPING: also the start, up to the first step. IDLE: a spare worker's, or waiting for the controller.
    """

    COMPUTING = "computing"
    BUBBLE = "bubble"
    EXCHANGE = "exchange"
    DATA = "data"
    CHECKPOINTS = "checkpoints"
    LOST = "lost"
    RESHAPING = "reshaping"
    IDLE = "idle"


OF_STEPS = (Use.COMPUTING, Use.BUBBLE, Use.EXCHANGE, Use.DATA)
"""What steps consist of: a step that is taken back leaves these for LOST."""

_OTHERS: dict[str, Use] = {
    Phase.LOAD: Use.DATA,
    Phase.EXCHANGE: Use.EXCHANGE,
    Phase.CHECKPOINT: Use.CHECKPOINTS,
    Phase.PUBLISH: Use.CHECKPOINTS,
    Phase.ROLLBACK: Use.LOST,
    Phase.RECOVERY: Use.LOST,
    Phase.START: Use.RESHAPING,
    Phase.RESHAPE: Use.RESHAPING,
    Phase.FREEZE: Use.RESHAPING,
    Phase.SPARE: Use.IDLE,
    Phase.DECISION: Use.IDLE,
    Phase.DONE: Use.IDLE,
}
"""Phases that are no computing, by their use."""


def use_of(phase: str) -> Use:
    """Where a phase's time goes that is not waiting for other members. An unknown phase, of a newer worker, computes."""
    return _OTHERS.get(phase, Use.COMPUTING)


def by_use(seconds: Mapping[str, float], waiting: Mapping[str, float]) -> dict[Use, float]:
    """A worker's seconds by use; their sum is that of `seconds`.

    Args:
        seconds: by phase.
        waiting: of them, blocked on other members: a bubble where the phase computes or loads, else the phase's own.
    """
    used = dict.fromkeys(Use, 0.0)
    for phase, spent in seconds.items():
        if not 0.0 <= spent < SECONDS_MAX:
            continue  # no worker means that
        use, waited = use_of(phase), waiting.get(phase, 0.0)
        blocked = min(spent, waited) if use in (Use.COMPUTING, Use.DATA) and waited > 0.0 else 0.0
        used[Use.BUBBLE] += blocked
        used[use] += spent - blocked
    return used
