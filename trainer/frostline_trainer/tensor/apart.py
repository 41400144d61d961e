"""Computes each tile in a thread of its own, as the workers of the largest possible group would, for checks before a run."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from frostline_trainer.tensor.state import cut_layers
from frostline_trainer.tensor.tiles import Tiles, pairwise

GRADIENT = "the gradient of "
Results = dict[str, Tensor]
"""Results of a unit by name, in words; the gradient of a parameter is called `GRADIENT` and the parameter's name."""


class Apart:
    """One unit for each tile, which holds that tile alone.

    Args:
        total: number of tiles.
        make: makes a unit that computes the tiles given.
    """

    def __init__(self, total: int, make: Callable[[Tiles], nn.Module]) -> None:
        self._barrier, self._slots = threading.Barrier(total), [torch.empty(0)] * total
        self._units = [make(Tiles(total, tile, 1, lambda node, tile=tile: self._join(tile, node))) for tile in range(total)]

    def computed(self, results_of: Callable[[nn.Module], Results]) -> Results:
        """The results as of the whole unit: tiles' gradients put together, results that all threads have alike once.

        Raises RuntimeError if a thread fails, or if threads differ in results that they should have alike.
        """
        with ThreadPoolExecutor(len(self._units)) as threads:
            found = list(threads.map(lambda unit: self._member(unit, results_of), self._units))
        layers, first = cut_layers(self._units[0]), found[0]
        results: Results = {}
        for name in first:
            if (layer := layers.get(name.removeprefix(GRADIENT))) is not None:
                results[name] = layer.cut.whole([one[name] for one in found])
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

    def _join(self, tile: int, node: Tensor) -> Tensor:
        self._slots[tile] = node
        self._barrier.wait()
        total = pairwise(self._slots)
        self._barrier.wait()
        return total
