"""The facts from which a failure is answered, the four possible answers, and found wrong bits. Plain immutable records.

Throughout this package n is the running generation and n + 1 the plan that is prepared to follow it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId, Plan, SeenVote, StateTag
from frostline_contract.record import Frozen


@dataclass(frozen=True)
class HeldPiece:
    """A piece that a survivor reports.

    Attributes:
        piece: the piece's number.
        state: the piece's state; None where an update was interrupted.
        prepared: the survivor has the gradients of the next step of `SurvivorReport.ran`, and can still commit that step.
    """

    piece: int
    state: StateTag | None
    prepared: bool = False


@dataclass(frozen=True)
class SurvivorReport:
    """One worker's report, and its promise: to enter no generation up to `newest_received`, and to ignore later votes of `ran`.

    Attributes:
        worker_id: the worker.
        newest_received: the newest generation that the worker has received.
        ran: the generation of which the worker was a member.
        held: the pieces that the worker has.
        seen: the results of votes that the worker saw.
        switched: prepared plans of which the worker saw the switching vote.
        expired: prepared plans to which no vote will switch.
    """

    worker_id: str
    newest_received: GenerationId
    ran: GenerationId | None = None
    held: tuple[HeldPiece, ...] = ()
    seen: tuple[SeenVote, ...] = ()
    switched: frozenset[GenerationId] = frozenset()
    expired: frozenset[GenerationId] = frozenset()


@dataclass(frozen=True)
class Failure:
    """All facts on which the answer may depend.

    Args:
        current: the plan of generation n, durable.
        prepared: the plan of n + 1, durable; None where none is prepared.
        reports: by worker.
        ended: workers whose processes have certainly ended.
        silent: workers that missed their deadline or cannot be reached; their processes may still run.
        votable: whether members may have received the notice that all are ready for n + 1. Before it no member votes to switch.
    """

    current: Plan
    prepared: Plan | None
    reports: Mapping[str, SurvivorReport]
    ended: frozenset[str]
    silent: frozenset[str]
    votable: bool = True

    @property
    def pieces(self) -> Pieces:
        """The table of the run's pieces."""
        return self.current.pieces


@dataclass(frozen=True)
class Wait:
    """No plan yet: these workers may still report."""

    workers: tuple[str, ...]


@dataclass(frozen=True)
class GoOn:
    """Go on from survivors: every piece at one state.

    Attributes:
        state: the newest state of which the survivors together hold every piece.
        holders: for each piece, the survivors that have it at `state`, or reach `state` by committing one step late.
        vote: the vote of that late step; None where nobody has to commit one.
        state_source: a survivor whose run state is at `state`, or reaches it by committing late.
        extends_all: no reporter knows of a vote after `state`, and none can have passed unseen. Otherwise the plan begins a new
            lineage.
    """

    state: StateTag
    holders: tuple[tuple[str, ...], ...]
    state_source: str
    vote: SeenVote | None
    extends_all: bool


@dataclass(frozen=True)
class GoBack:
    """Load the newest complete checkpoint.

    Attributes:
        missing: pieces that no survivor has at the best state.
        reason: in words.
    """

    missing: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class NewEpoch:
    """A generation may still run and none of its members reports. A higher run epoch makes its checkpoints and result void."""

    generations: tuple[GenerationId, ...]
    reason: str


Answer = Wait | GoOn | GoBack | NewEpoch


class WrongBits(Frozen):
    """Wrong bits that a plan goes back from, as the event `wrong_bits` reports them.

    Attributes:
        first_step: the first step that is not to be trusted.
        reason: whose the wrong bits are or may be, in words; once there is a plan, the plan's reason too.
        detail: the event's detail.
        lineage, generation, step: those of the plan: its lineage, its generation, and the step at which it starts.
        earlier: the wrong bits before these whose events were not on disk yet when this plan became durable.
    """

    first_step: int
    reason: str
    detail: dict[str, Any]
    lineage: int = 0
    generation: str = ""
    step: int = 0
    earlier: tuple["WrongBits", ...] = ()

    def answered_by(self, plan: Plan) -> "WrongBits":
        """Return the wrong bits with the plan that goes back from them."""
        reason = "; ".join(text for text in (self.reason, plan.reason) if text)
        place = {"lineage": plan.lineage, "generation": str(plan.generation), "step": max(plan.start_step, 0)}
        return self.model_copy(update={"reason": reason, **place})
