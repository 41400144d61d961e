"""The inventory of a worker: every piece whose intact state it holds, with its state tag (docs/protocols.md 4.4).

These are pieces that it owns, pieces of unit replicas, and pieces that it has not released yet. Only the training thread writes
the inventory, and makes recovery reports from it.
"""

from collections.abc import Callable, Iterable

from frostline_contract.plan import StateTag


class Holdings:
    """Maps each piece to the state in which it is intact here. A piece that is being written (torn) has none.

    before_writing: called before any piece is written, to wait for copies of pieces that are under way.
    """

    def __init__(self) -> None:
        self._states: dict[int, StateTag] = {}
        self.before_writing: Callable[[], None] = lambda: None

    def state(self, piece: int) -> StateTag | None:
        """The piece's intact state; None if it is torn or not here."""
        return self._states.get(piece)

    def all(self) -> dict[int, StateTag]:
        """A copy of the intact pieces with their states, for a report, which must not change while it is sent."""
        return dict(self._states)

    def tear(self, pieces: Iterable[int]) -> None:
        """Mark pieces as torn, before they are written, until `settle`."""
        self.before_writing()
        for piece in pieces:
            self._states.pop(piece, None)

    def settle(self, pieces: Iterable[int], tag: StateTag) -> None:
        """Mark pieces as intact, at `tag`."""
        for piece in pieces:
            self._states[piece] = tag

    def drop(self, pieces: Iterable[int]) -> None:
        """Remove pieces: this worker no longer holds them for others."""
        self.tear(pieces)
