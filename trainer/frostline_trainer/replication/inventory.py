"""What this process could bring back: every piece whose whole state it has, and which state that is (docs/protocols.md 4.4).

Pieces that it owns, pieces that it keeps for others (wards), and pieces that it has not given up yet. Written by the training
thread alone; a report is made by that thread too.
"""

from collections.abc import Callable, Iterable

from frostline_contract.plan import StateTag


class Holdings:
    """Piece -> the state that is intact here. A piece that is being written is in no state at all (torn).

    before_writing: called before any piece is written: what still copies pieces may have to be waited for.
    """

    def __init__(self) -> None:
        self._states: dict[int, StateTag] = {}
        self.before_writing: Callable[[], None] = lambda: None

    def state(self, piece: int) -> StateTag | None:
        """The piece's intact state; None where it is torn or not here."""
        return self._states.get(piece)

    def pieces_at(self, tag: StateTag) -> list[int]:
        """The pieces that are intact at `tag`, in order."""
        return sorted(piece for piece, state in self._states.items() if state == tag)

    def all(self) -> dict[int, StateTag]:
        """The intact pieces with their states, copied: a report must not change while it is sent."""
        return dict(self._states)

    def tear(self, pieces: Iterable[int]) -> None:
        """They are about to be written: until `settle` they are nobody's."""
        self.before_writing()
        for piece in pieces:
            self._states.pop(piece, None)

    def settle(self, pieces: Iterable[int], tag: StateTag) -> None:
        """They are whole, at `tag`."""
        for piece in pieces:
            self._states[piece] = tag

    def drop(self, pieces: Iterable[int]) -> None:
        """They are given up: nobody may ask for them here."""
        self.tear(pieces)
