"""How a training loop meets its surroundings: why it ends, and what it asks for on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from frostline_contract.plan import Decision, Plan, SeenVote
from frostline_trainer.engine.generation import StepGradients


class Ended(Enum):
    """Why a generation's loop ended."""

    SWITCHED = "switched"
    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True)
class LoopEnd:
    """plan: for SWITCHED, the plan to enter. message: for FAILED."""

    how: Ended
    plan: Plan | None = None
    message: str = ""


@dataclass
class LoopHooks:
    """What the loop asks of its surroundings.

    checkpoint(before_freeze): take a copy now. roll_back(decision): put the state of its step back. stable(): a vote has passed.
    applied(decision): a decision is in force. report(kind, reason, seconds, **detail): an event; everybody=True: it must not be
    lost with one member.
    parts(): step parts since the last call. cache_counts(): (hits, misses) since the last call.
    first_vote(): the first vote of this generation has passed. seen(vote): a step's vote has returned.
    check(): raises RuntimeError where this generation is over.
    """

    checkpoint: Callable[[bool], None]
    roll_back: Callable[[Decision], None]
    stable: Callable[[], None]
    applied: Callable[[Decision], None]
    report: Callable[..., None]
    parts: Callable[[], dict[str, float]]
    cache_counts: Callable[[], tuple[int, int]]
    first_vote: Callable[[], None]
    seen: Callable[[SeenVote], None]
    check: Callable[[], None]


class Prepared(NamedTuple):
    """A step whose reduced gradients are complete here, and that is not committed yet."""

    step: int
    gradients: StepGradients
