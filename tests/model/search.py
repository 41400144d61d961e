"""Breadth-first search of all reachable worlds, so that the first violation has a shortest trace."""

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.model.configurations import Configuration
from tests.model.entering import entering_moves
from tests.model.faults import fault_moves
from tests.model.invariants import Broken
from tests.model.leading import leader_moves
from tests.model.training import training_moves
from tests.model.universe import Move, Universe
from tests.model.world import ENDED, World


@dataclass
class Outcome:
    """The result of a search.

    Attributes:
        states: number of worlds visited.
        complete: whether all were visited.
        violation: the broken invariant, to which the moves of `trace` lead; empty where none is broken.
        ends: number of worlds in which the run has its result.
    """

    configuration: str
    states: int
    seconds: float
    complete: bool
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    ends: int = 0


def moves(universe: Universe, world: World) -> Iterator[Move]:
    """Yield every move that may happen next."""
    for index, worker in universe.all_workers(world):
        if worker.mode != ENDED:
            yield from training_moves(universe, world, index, worker)
            yield from entering_moves(universe, world, index, worker)
    yield from leader_moves(universe, world)
    yield from fault_moves(universe, world)


class Search:
    """One search, breadth first. limit: the number of worlds after which it gives up."""

    def __init__(self, configuration: Configuration, off: frozenset[str] = frozenset(), limit: int = 2_000_000) -> None:
        self.universe = Universe(configuration, off)
        self._limit = limit
        self._worlds: list[World] = []
        self._numbers: dict[World, int] = {}
        self._parents = array("l")
        self._before = (array("l"), array("l"))

    def run(self, progress: bool = True) -> Outcome:
        """Visit all worlds; then, if no invariant is broken, check that every world can still reach an end."""
        started = time.monotonic()
        self._add(self.universe.start(), -1)
        visited = 0
        broken: tuple[Broken, int] | None = None
        while visited < len(self._worlds) < self._limit and broken is None:
            broken = self._visit(visited, progress)
            visited += 1
        outcome = Outcome(
            self.universe.configuration.name, len(self._worlds), 0.0, complete=broken is None and visited == len(self._worlds),
            ends=sum(1 for world in self._worlds if world.results),
        )  # fmt: skip
        if broken is not None:
            last = [broken[0].label] if broken[0].label else []
            outcome.violation, outcome.trace = str(broken[0]), [*self.trace(broken[1]), *last]
        elif progress and outcome.complete:
            stuck = self._stuck()
            if stuck is not None:
                outcome.violation = "I6: without further faults nothing leads to the end of the run from here"
                outcome.trace = self.trace(stuck)
        outcome.seconds = time.monotonic() - started
        return outcome

    def _visit(self, number: int, progress: bool) -> tuple[Broken, int] | None:
        sources, targets = self._before
        try:
            for _, world, is_fault in moves(self.universe, self._worlds[number]):
                following = self._add(world, number)
                if progress and not is_fault:
                    sources.append(number)
                    targets.append(following)
        except Broken as broken:
            return broken, number
        return None

    def _add(self, world: World, parent: int) -> int:
        found = self._numbers.get(world)
        if found is None:
            found = self._numbers[world] = len(self._worlds)
            self._worlds.append(world)
            self._parents.append(parent)
        return found

    # ---- traces

    def trace(self, number: int) -> list[str]:
        """Return the moves that lead to a world, in words."""
        words: list[str] = []
        while self._parents[number] >= 0:
            parent = self._parents[number]
            wanted = self._worlds[number]
            words.append(next(label for label, world, _ in moves(self.universe, self._worlds[parent]) if world == wanted))
            number = parent
        return words[::-1]

    # ---- progress

    def _stuck(self) -> int | None:
        """Return a world from which no moves without faults lead to an end, although the controller reaches a worker; None for
        none."""
        good = bytearray(self._is_end(world) for world in self._worlds)
        before: list[list[int]] = [[] for _ in self._worlds]
        for source, target in zip(*self._before, strict=True):
            before[target].append(source)
        waiting = [number for number, is_good in enumerate(good) if is_good]
        while waiting:
            for source in before[waiting.pop()]:
                if not good[source]:
                    good[source] = 1
                    waiting.append(source)
        return next((number for number, is_good in enumerate(good) if not is_good), None)

    def _is_end(self, world: World) -> bool:
        reached = (worker for index, worker in self.universe.all_workers(world) if world.side[index] == 0)
        return bool(world.results) or all(worker.mode == ENDED for worker in reached)
