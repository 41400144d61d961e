"""The vote: one small all-reduce that every member of a generation enters once a step (docs/protocols.md 2.3).

Every slot has one contributor, so the all-reduce is exact, and all members total the slots in the same order. Slots: each piece's
squared gradient norm, each micro-batch's loss, each piece's covered bit, and per member its readiness, newest decision and flags.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from frostline_contract.pieces import Pieces
from frostline_trainer.transport.collectives import Group

MEMBER_SLOTS = 7
READY, DECISION, GIVE_UP, DRAIN, CHECKPOINT, HITS, MISSES = range(MEMBER_SLOTS)


@dataclass(frozen=True)
class Ballot:
    """One member's contribution to a vote.

    Attributes:
        piece_squares: Squared gradient norm of the pieces that this member reports.
        losses: Loss of the micro-batches that it computed.
        ready: Counter of the prepared generation that it may enter, 0 for none.
        decision: The due decision's number if the member has it, else the number of the decision in force.
        give_up: Whether it gives the due decision up, after `decisions.wait_seconds`.
        drain, checkpoint: Whether the controller has asked it for one.
        cache_hits, cache_misses: Samples of the step that it looked up in the cache.
        kept: The covered pieces among those whose cover it reports (`Generation.kept`).
    """

    piece_squares: dict[int, float]
    losses: dict[int, float]
    ready: int = 0
    decision: int = 0
    give_up: bool = False
    drain: bool = False
    checkpoint: bool = False
    cache_hits: int = 0
    cache_misses: int = 0
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True)
class VoteResult:
    """The result of a vote, the same on all members.

    covered: for each piece, whether it could be recovered after the loss of a failure domain. slots: the raw sums, from which
    `read_vote` computes the same result again.
    """

    unit_squares: tuple[float, ...]
    loss: float
    gradient_norm: float
    ready_smallest: int
    ready_largest: int
    decision_smallest: int
    give_up: bool
    drain: bool
    checkpoint: bool
    cache_hits: int = 0
    cache_misses: int = 0
    covered: tuple[bool, ...] = ()
    slots: tuple[float, ...] = ()

    @property
    def uncovered(self) -> list[int]:
        """The pieces that no member in another failure domain holds."""
        return [piece for piece, covered in enumerate(self.covered) if not covered]

    @property
    def finite(self) -> bool:
        """Whether the step may be committed."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    def switches_to(self, counter: int) -> bool:
        """Whether all members are ready for that generation."""
        return counter > 0 and self.ready_smallest == self.ready_largest == counter


def hold_vote(world: Group, ballot: Ballot, pieces: Pieces, num_microbatches: int) -> VoteResult:
    """Hold the vote: one all-reduce over the world. Returns its result."""
    bits = pieces.count + num_microbatches
    head = bits + pieces.count
    slots = torch.zeros(head + MEMBER_SLOTS * world.size, dtype=torch.float64)
    for piece, square in ballot.piece_squares.items():
        slots[piece] = square
    for number, loss in ballot.losses.items():
        slots[pieces.count + number] = loss
    for piece in ballot.kept:
        slots[bits + piece] = 1.0
    own = head + MEMBER_SLOTS * world.index
    said = [
        ballot.ready,
        ballot.decision,
        ballot.give_up,
        ballot.drain,
        ballot.checkpoint,
        ballot.cache_hits,
        ballot.cache_misses,
    ]
    slots[own : own + MEMBER_SLOTS] = torch.tensor(said, dtype=torch.float64)
    world.all_reduce_sum(slots)
    return read_vote(slots.tolist(), pieces, num_microbatches)


def read_vote(slots: Sequence[float], pieces: Pieces, num_microbatches: int) -> VoteResult:
    """The result of a vote from its summed slots; a member that receives the slots late gets the same result."""
    bits = pieces.count + num_microbatches
    head = bits + pieces.count
    members = [slots[place : place + MEMBER_SLOTS] for place in range(head, len(slots), MEMBER_SLOTS)]
    squares, loss, total = [0.0] * pieces.num_units, 0.0, 0.0
    for piece, square in enumerate(slots[: pieces.count]):
        squares[pieces.unit_of(piece)] += square
    for value in slots[pieces.count : bits]:
        loss += value
    for square in squares:
        total += square
    return VoteResult(
        unit_squares=tuple(squares),
        loss=loss,
        gradient_norm=math.sqrt(total) if total >= 0 else total,
        ready_smallest=int(min(member[READY] for member in members)),
        ready_largest=int(max(member[READY] for member in members)),
        decision_smallest=int(min(member[DECISION] for member in members)),
        give_up=any(member[GIVE_UP] for member in members),
        drain=any(member[DRAIN] for member in members),
        checkpoint=any(member[CHECKPOINT] for member in members),
        cache_hits=int(sum(member[HITS] for member in members)),
        cache_misses=int(sum(member[MISSES] for member in members)),
        covered=tuple(value > 0.0 for value in slots[bits:head]),
        slots=tuple(slots),
    )
