"""The values that a training loop returns: actions that the worker has to do between two steps, and why the loop has ended."""

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
        message: For FAILED, the message for the user.
    """

    how: Ended
    plan: Plan | None = None
    message: str = ""


@dataclass(frozen=True)
class VotePassed:
    """A vote has passed: the step that was committed before it is stable, and its record may be sent.

    Args:
        first: Whether it is the generation's first vote: nothing of the previous generation is needed any more.
        given_up: The number of the decision that the previous vote gave up; 0 for none.
    """

    first: bool
    given_up: int = 0


@dataclass(frozen=True)
class IntervalDue:
    """The last committed step ends an interval: its statistics are due, and with them perhaps a score of the guard split."""


@dataclass(frozen=True)
class CheckpointDue:
    """A checkpoint of the last committed step is due.

    Args:
        before_freeze: It is taken before a freeze, so that the guard can roll back to it.
        answers_wish: It also answers a checkpoint request of the controller, if there is one.
    """

    before_freeze: bool = False
    answers_wish: bool = False


@dataclass(frozen=True)
class RollbackDue:
    """A rollback is due: the state at the decision's step is restored from a checkpoint."""

    decision: Decision


@dataclass(frozen=True)
class FreezeDue:
    """A decision that moves the freeze point has come into force: stages are to be rebuilt."""

    decision: Decision


Due = VotePassed | IntervalDue | CheckpointDue | RollbackDue | FreezeDue | LoopEnd


class Prepared(NamedTuple):
    """A step whose reduced gradients are complete on this member, and that is not committed yet."""

    step: int
    gradients: StepGradients
