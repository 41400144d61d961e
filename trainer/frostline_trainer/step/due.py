"""What a training loop returns: what is due between two steps, for the worker to do, and why a generation's loop has ended."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from frostline_contract.plan import Decision, Plan
from frostline_trainer.step.generation import StepGradients


class Ended(Enum):
    """Why a generation's loop ended."""

    SWITCHED = "switched"
    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True)
class LoopEnd:
    """The loop has ended.

    Args:
        how: Why.
        plan: For SWITCHED, the plan to enter.
        message: For FAILED, what the user is told.
    """

    how: Ended
    plan: Plan | None = None
    message: str = ""


@dataclass(frozen=True)
class VotePassed:
    """A vote has passed: what was committed before it is stable and may leave.

    Args:
        first: Whether it is the generation's first: what the generation before has kept is not needed any more.
        given_up: The number of the decision that the vote before gave up; 0 for none.
    """

    first: bool
    given_up: int = 0


@dataclass(frozen=True)
class IntervalDue:
    """The last committed step ends an interval: the guard split is scored and the interval's statistics are frozen."""


@dataclass(frozen=True)
class CheckpointDue:
    """A checkpoint of the last committed step.

    Args:
        before_freeze: The guard may come back to it.
        answers_wish: Somebody may have asked for it: the wish is fulfilled.
    """

    before_freeze: bool = False
    answers_wish: bool = False


@dataclass(frozen=True)
class RollbackDue:
    """The state of the decision's step comes back."""

    decision: Decision


@dataclass(frozen=True)
class FreezeDue:
    """A decision is in force that moves the freeze point: stages are rebuilt."""

    decision: Decision


Due = VotePassed | IntervalDue | CheckpointDue | RollbackDue | FreezeDue | LoopEnd


class Prepared(NamedTuple):
    """A step whose reduced gradients are complete here, and that is not committed yet."""

    step: int
    gradients: StepGradients
