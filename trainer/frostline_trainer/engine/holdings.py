"""What this process could bring back: every unit whose whole state it has, and which state that is (docs/protocols.md 4.4).

Units that it owns, units that it keeps for others (wards), and units that it has not given up yet. Written by the training
thread alone; a report is made by that thread too.
"""

from collections.abc import Iterable

from frostline_contract.plan import StateTag


class Holdings:
    """Unit -> the state that is intact here. A unit that is being written is in no state at all (torn)."""

    def __init__(self) -> None:
        self._states: dict[int, StateTag] = {}

    def state(self, unit: int) -> StateTag | None:
        """The unit's intact state; None where it is torn or not here."""
        return self._states.get(unit)

    def units_at(self, tag: StateTag) -> list[int]:
        """The units that are intact at `tag`, in order."""
        return sorted(unit for unit, state in self._states.items() if state == tag)

    def all(self) -> dict[int, StateTag]:
        return dict(self._states)

    def tear(self, units: Iterable[int]) -> None:
        """They are about to be written: until `settle` they are nobody's."""
        for unit in units:
            self._states.pop(unit, None)

    def settle(self, units: Iterable[int], tag: StateTag) -> None:
        """They are whole, at `tag`."""
        for unit in units:
            self._states[unit] = tag

    def drop(self, units: Iterable[int]) -> None:
        """They are given up: nobody may ask for them here."""
        self.tear(units)
