"""The uses of a worker-second, and the use of each phase's time (docs/run-directory.md has the table for users)."""

from collections.abc import Mapping
from enum import StrEnum

from frostline_contract.phases import Phase

SECONDS_MAX = 1e10
"""Upper limit of a worker's time in one phase, about three centuries; larger numbers are ignored as wrong."""


class Use(StrEnum):
    """The use of a worker's second. Each second of a worker, from its admission to its leaving, has exactly one use.

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
"""The uses of a step's time; the time of a step that is taken back moves from these to LOST."""

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
"""The uses of phases other than computing."""


def use_of(phase: str) -> Use:
    """Return the use of a phase's time, waiting for other members apart. A newer worker's unknown phase counts as computing."""
    return _OTHERS.get(phase, Use.COMPUTING)


def by_use(seconds: Mapping[str, float], waiting: Mapping[str, float]) -> dict[Use, float]:
    """Return a worker's seconds by use; the sum is that of `seconds`.

    Args:
        seconds: by phase.
        waiting: the part of these seconds spent blocked on other members, by phase. This part counts as bubble where the phase
            computes or loads, else as the phase's own use.
    """
    used = dict.fromkeys(Use, 0.0)
    for phase, spent in seconds.items():
        if not 0.0 <= spent < SECONDS_MAX:
            continue  # an impossible number
        use, waited = use_of(phase), waiting.get(phase, 0.0)
        blocked = min(spent, waited) if use in (Use.COMPUTING, Use.DATA) and waited > 0.0 else 0.0
        used[Use.BUBBLE] += blocked
        used[use] += spent - blocked
    return used
