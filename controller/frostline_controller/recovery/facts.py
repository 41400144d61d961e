"""What is known when a failure is answered, and what the answer can be. Plain immutable records."""

from collections.abc import Mapping
from dataclasses import dataclass

from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId, Plan, SeenVote, StateTag


@dataclass(frozen=True)
class HeldPiece:
    """A piece that a survivor reports. state: None where it is torn. prepared: it can commit the next step of `ran` late."""

    piece: int
    state: StateTag | None
    prepared: bool = False


@dataclass(frozen=True)
class SurvivorReport:
    """A promise: who reports enters no generation up to `heard`, and takes no vote result of `ran` any more.

    ran: the generation that it was a member of. seen: results of votes that it saw. switched, dead: prepared plans whose fate it
    knows: the switching vote was seen, or no vote will switch.
    """

    worker_id: str
    heard: GenerationId
    ran: GenerationId | None = None
    held: tuple[HeldPiece, ...] = ()
    seen: tuple[SeenVote, ...] = ()
    switched: frozenset[GenerationId] = frozenset()
    dead: frozenset[GenerationId] = frozenset()


@dataclass(frozen=True)
class Failure:
    """Everything that the answer may depend on.

    current: generation n, durable. prepared: n + 1, durable, where there is one. reports: by worker. ended: processes known to
    have ended. silent: workers that missed their deadline or cannot be reached, and whose processes may still run. votable:
    whether members may have heard that all are ready for the prepared plan; before, none votes for it.
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
    """Not yet: these may still report."""

    workers: tuple[str, ...]


@dataclass(frozen=True)
class GoOn:
    """All pieces from one step. state: the newest that is whole. holders: for each piece, the survivors that have it, or can
    commit it late. vote: that step's, where anybody has to. state_source: a survivor whose run state is at `state`, or comes
    there by committing late. extends_all: no reporter knows of a vote after it, and none can have passed that all reporters
    have missed (else it begins a new lineage).
    """

    state: StateTag
    holders: tuple[tuple[str, ...], ...]
    state_source: str
    vote: SeenVote | None
    extends_all: bool


@dataclass(frozen=True)
class GoBack:
    """Everything from the newest complete checkpoint. missing: pieces that nobody has at one step. reason: for people."""

    missing: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class NewEpoch:
    """A generation may still run somewhere, and nobody of it reports: only a raised run_epoch makes going on safe."""

    generations: tuple[GenerationId, ...]
    reason: str


Answer = Wait | GoOn | GoBack | NewEpoch
