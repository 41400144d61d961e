"""The choice of the state from which a recovery goes on: the newest whole state of the survivors (docs/protocols.md 4.4). Pure.

A state is *whole* where each piece has a survivor that holds it. States are compared by their tags, never by step numbers alone:
two generations may have voted on the same step.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from frostline_contract.lineage import Place
from frostline_contract.plan import CONTINUE, SeenVote, StateTag
from frostline_controller.recovery.facts import Failure, GoOn, HeldPiece, SurvivorReport
from frostline_controller.recovery.may_start import is_bounded

Votes = dict[StateTag, SeenVote]


@dataclass(frozen=True)
class Source:
    """A survivor whose state may be used, with its intact pieces."""

    report: SurvivorReport
    pieces: dict[int, HeldPiece]

    @property
    def worker_id(self) -> str:
        """The survivor that reported."""
        return self.report.worker_id

    def has(self, piece: int, state: StateTag, votes: Votes) -> bool:
        """Whether the survivor has the piece at `state`, or reaches `state` by committing a step late."""
        one = self.pieces.get(piece)
        return one is not None and (one.state == state or (state in votes and self._is_before(one, state)))

    def reaches(self, state: StateTag) -> bool:
        """Whether one of the survivor's pieces would reach `state` by committing a step late."""
        return any(self._is_before(one, state) for one in self.pieces.values())

    def _is_before(self, one: HeldPiece, state: StateTag) -> bool:
        """Whether the piece is one step before `state`, and the survivor has the reduced gradients of that step.

        Lineages may differ: the first step of a new lineage starts from a state of an older one. The survivor was a member of the
        generation that voted, so no vote passed without the survivor, and its gradients are those of that lineage's step.
        """
        before = one.state
        if not one.prepared or before is None or self.report.ran != state.generation:
            return False
        return before.step + 1 == state.step and before.lineage <= state.lineage


def find_target(failure: Failure) -> GoOn | None:
    """Return the newest whole state, to which all members are brought; None where no state is whole."""
    votes, sources = known_votes(failure), list(_sources(failure))
    for state in _candidates(sources, votes):
        holders = _holders(failure.pieces.count, sources, state, votes)
        if holders and all(holders):
            return GoOn(
                state=state,
                holders=holders,
                state_source=_state_source(sources, holders, state),
                vote=votes.get(state),
                extends_all=is_bounded(failure)
                and not any(_is_beyond(failure, tag, state) for tag in _known_outcomes(failure, sources)),
            )
    return None


def missing_pieces(failure: Failure) -> tuple[int, ...]:
    """Return the pieces missing at the state that is nearest to whole: fewest missing pieces, then the newest state."""
    votes, sources = known_votes(failure), list(_sources(failure))
    lacking = [
        tuple(piece for piece, workers in enumerate(_holders(failure.pieces.count, sources, state, votes)) if not workers)
        for state in _candidates(sources, votes)
    ]
    return min(lacking, key=len, default=tuple(range(failure.pieces.count)))


def known_votes(failure: Failure) -> Votes:
    """Return all votes that reporters saw, by the state after their commit. Reports of ended workers count too."""
    seen = [vote for _, report in sorted(failure.reports.items()) for vote in report.seen]
    if failure.current.vote is not None:
        seen.append(failure.current.vote)
    return {tag_of(vote): vote for vote in seen}


def counted(failure: Failure, report: SurvivorReport) -> tuple[HeldPiece, ...]:
    """Return the pieces of a report that may be used (docs/protocols.md 5.8).

    Of a worker that is gone no piece may be used; of a worker that was a recent member (`_ran_lately`) all pieces; of any other
    worker only the pieces of which plan n names it as a holder, and those that it received while entering n. A plan since the
    worker's own generation may have discarded its other states.
    """
    if _is_gone(failure, report):
        return ()
    if _ran_lately(failure, report):
        return report.held
    current = failure.current
    given = current.start_tag if report.worker_id in current.places else None
    named = current.held_by(report.worker_id)
    return tuple(
        # Of a received piece only the state counts: earlier gradients are of a step on which others may have voted since.
        one if one.piece in named else replace(one, prepared=False)
        for one in report.held
        if one.piece in named or (given is not None and one.state == given)
    )


def _is_gone(failure: Failure, report: SurvivorReport) -> bool:
    return report.worker_id in failure.ended or report.worker_id in failure.silent


def _ran_lately(failure: Failure, report: SurvivorReport) -> bool:
    """Whether the worker was a member of n, of n + 1, or of the generation that n continues (it may have missed the switch)."""
    current, prepared = failure.current, failure.prepared
    recent = {current.generation}
    if prepared is not None:
        recent.add(prepared.generation)
    if current.start == CONTINUE and current.base is not None:
        recent.add(current.base)
    return report.ran in recent


def tag_of(vote: SeenVote) -> StateTag:
    """Return the tag of the state after the commit of the vote's step."""
    return StateTag(lineage=vote.lineage, step=vote.step, generation=vote.generation)


def lineage_at(failure: Failure, state: StateTag) -> int:
    """Return the lineage of `state`: its own, or that of plan n where n began a new lineage at this state."""
    return failure.current.lineage if state == failure.current.start_tag else state.lineage


def _sources(failure: Failure) -> Iterator[Source]:
    """Yield the survivors whose state may be used, in the order of their ids."""
    known = range(failure.pieces.count)
    for _, report in sorted(failure.reports.items()):
        pieces = {one.piece: one for one in counted(failure, report) if one.state is not None and one.piece in known}
        if pieces:
            yield Source(report, pieces)


def _candidates(sources: list[Source], votes: Votes) -> list[StateTag]:
    """Return every state that a survivor holds or can reach by a late commit, newest first: by lineage, step, then generation."""
    held = {one.state for source in sources for one in source.pieces.values() if one.state is not None}
    late = {state for state in votes if any(source.reaches(state) for source in sources)}
    return sorted(held | late, key=_recency, reverse=True)


def _holders(num_pieces: int, sources: list[Source], state: StateTag, votes: Votes) -> tuple[tuple[str, ...], ...]:
    holders: list[list[str]] = [[] for _ in range(num_pieces)]
    for source in sources:
        for piece in source.pieces:
            if source.has(piece, state, votes):
                holders[piece].append(source.worker_id)
    return tuple(map(tuple, holders))


def _state_source(sources: list[Source], holders: tuple[tuple[str, ...], ...], state: StateTag) -> str:
    """Return the survivor that sends the run state (counters, sums): if possible one with all its pieces already at `state`."""

    def preference(source: Source) -> tuple[bool, int, str]:
        settled = all(one.state == state for one in source.pieces.values())
        return (not settled, -giving[source.worker_id], source.worker_id)

    giving = Counter(worker for workers in holders for worker in workers)
    return min((source for source in sources if source.worker_id in giving), key=preference).worker_id


def _is_beyond(failure: Failure, known: StateTag, state: StateTag) -> bool:
    """Whether `known` is a result that `state` does not contain: a later step, or another vote on the same step.

    Later steps of an older lineage do not count: the newer lineage has cut them off.
    """
    reached = Place(lineage_at(failure, state), state.step)
    return known.place > reached or (known.place == reached and known != state)


def _known_outcomes(failure: Failure, sources: list[Source]) -> Iterator[StateTag]:
    """Yield every known vote result: from states that reporters hold, and from votes that they saw, even if they have ended."""
    for source in sources:
        yield from (one.state for one in source.pieces.values() if one.state is not None)
    named = {source.worker_id for source in sources}
    for report in failure.reports.values():
        if report.worker_id in named or _ran_lately(failure, report):
            yield from (tag_of(vote) for vote in report.seen)


def _recency(tag: StateTag) -> tuple[Place, int, int]:
    return (tag.place, tag.generation.incarnation, tag.generation.counter)
