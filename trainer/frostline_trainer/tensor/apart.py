"""Computes each tile in a thread of its own, as the workers of the largest possible group would, for checks before a run."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor, nn

from frostline_trainer.step.backward_thread import backward_in_own_thread
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.tensor.rows import WHOLE, Rows, row_tiles
from frostline_trainer.tensor.state import cut_layers
from frostline_trainer.tensor.tiles import Tiles

OUTPUT, GRADIENT = "the output of ", "the gradient of "
UNIT, ENTRY = f"{OUTPUT}the unit", f"{GRADIENT}the unit's input"
MEETING_SECONDS = 120.0
"""The limit of a wait for the other threads, which compute at most a unit's forward or backward meanwhile."""
Results = dict[str, Tensor]
"""Results of a unit by name, in words. The gradient of a parameter is called `GRADIENT` and the parameter's name."""


class Apart:
    """One unit for each thread; each holds an equal part of the tiles alone.

    Args:
        whole: all tiles. Of row tiles each thread computes an equal part, too, so that there may be fewer threads than tiles.
        make: makes a unit that computes the tiles given.
    """

    def __init__(self, whole: Tiles, make: Callable[[Tiles], nn.Module]) -> None:
        size = min(whole.total, whole.rows.total) if whole.rows.total > 1 else whole.grid.size
        self._barrier, self._slots = threading.Barrier(size, timeout=MEETING_SECONDS), [torch.empty(0)] * size
        self._units = [make(self._tiles(whole, place, size)) for place in range(size)]

    def _tiles(self, whole: Tiles, place: int, size: int) -> Tiles:
        levels = whole.hidden.total
        column, level = divmod(place, levels)
        line = range(level, size, levels)  # the threads with the same hidden tile
        exchange, held = _BetweenThreads(self, place, line), whole.total // len(line)
        of_rows = whole.rows.total // size
        rows = Rows(whole.rows.total, place * of_rows, of_rows, exchange) if of_rows else WHOLE
        others = _BetweenThreads(self, place, range(column * levels, (column + 1) * levels))
        hidden = Hidden(levels, level, 1, _BetweenLevels(others)) if levels > 1 else whole.hidden
        return Tiles(whole.total, column * held, held, exchange.sum if len(line) > 1 else None, rows, hidden)

    def computed(self, results_of: Callable[[nn.Module], Results]) -> Results:
        """The results as of the whole unit: tiles' gradients and samples put together, results that all threads have alike once.

        Raises the exception of a thread that fails, and RuntimeError if threads do not meet at each sum, or differ in results
        that they should have alike.
        """
        with ThreadPoolExecutor(len(self._units), initializer=backward_in_own_thread) as threads:
            members = [threads.submit(self._member, unit, results_of) for unit in self._units]
        found = _all_found(members)
        layers, first = cut_layers(self._units[0]), found[0]
        divides_samples = row_tiles(self._units[0]).are_divided
        results: Results = {}
        for name in first:
            if (layer := layers.get(name.removeprefix(GRADIENT))) is not None:
                results[name] = layer.cut.whole([one[name] for one in found], layer.kept.hidden.total)
                continue
            if divides_samples and (name.startswith(OUTPUT) or name == ENTRY):
                results[name] = torch.cat([one[name] for one in found])
                continue
            if not all(torch.equal(one[name], first[name]) for one in found):
                raise RuntimeError(f"{name} is another one in another tile, and nothing has summed it")
            results[name] = first[name]
        return results

    def _member(self, unit: nn.Module, results_of: Callable[[nn.Module], Results]) -> Results:
        try:
            return results_of(unit)
        except BaseException:
            self._barrier.abort()
            raise

    def exchange(self, place: int, own: Tensor) -> list[Tensor]:
        """The tensors of all threads in their order, which nobody changes."""
        self._slots[place] = own
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found


def _all_found(members: Sequence["Future[Results]"]) -> list[Results]:
    """Return what all threads have found, or raise the exception of the first that did not just wait for a failed one."""
    failures = [error for member in members if (error := member.exception()) is not None]
    for error in failures:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    if failures:
        raise RuntimeError(f"the tiles do not sum in the same places: one waited {MEETING_SECONDS:g} s for the others in vain")
    return [member.result() for member in members]


class _BetweenThreads:
    """A `RowExchange` between some of the threads, while the others exchange in the same way.

    line: places of the threads that exchange.
    """

    def __init__(self, apart: Apart, place: int, line: range) -> None:
        self._apart, self._place, self._line = apart, place, line

    def all(self, own: Tensor) -> list[Tensor]:
        """The tensors of these threads in their order."""
        found = self._apart.exchange(self._place, own)
        return [found[place] for place in self._line]

    def gather(self, own: Tensor) -> Tensor:
        return torch.cat(self.all(own))

    def scatter_sum(self, node: Tensor) -> Tensor:
        nodes = self.all(node)
        return pairwise([one.chunk(len(nodes))[self._line.index(self._place)] for one in nodes])

    def sum(self, node: Tensor) -> Tensor:
        return pairwise(self.all(node))


class _BetweenLevels:
    """A `LevelExchange` between some of the threads."""

    def __init__(self, threads: _BetweenThreads) -> None:
        self._threads = threads

    def gather(self, own: Tensor) -> Tensor:
        return torch.cat(self._threads.all(own), 1)

    def sum(self, node: Tensor) -> Tensor:
        return self._threads.sum(node)
