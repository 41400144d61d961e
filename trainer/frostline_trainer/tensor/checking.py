"""Checks a family's tensor table: one block of each kind must compute the same with and without tiles.

The block is computed three times: whole; in tiles, all of them in one process; and each tile by a thread of its own, where the
threads exchange sums like the workers of a group. The last two must have equal bits, since any number of workers may share the
tiles. The first two may differ by rounding, since their sums have another order; hence the tolerance. All compute in float64,
where rounding is a billionth of the tolerance, while a wrong table changes results by a hundredth or more.
"""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from frostline_contract.seeds import seed_of
from frostline_trainer.tensor.install import tile_unit, tiled_layers
from frostline_trainer.tensor.linear import TiledColumn, TiledRow
from frostline_trainer.tensor.table import TensorTable
from frostline_trainer.tensor.tiles import Tiles, pairwise

TOLERANCE = 1e-5
VANISHING = 1e-3
"""Results below this share of the largest one may differ by as much as one of that size: a key's bias has a gradient of rounding
only."""
REMEDY = "correct it, or set training.tensor_tiles.inner to 1"
OUTPUT, GRADIENT = "the output of ", "the gradient of "
UNIT, ENTRY = f"{OUTPUT}the unit", f"{GRADIENT}the unit's input"

Results = dict[str, Tensor]
"""Results of a block by name, in words."""


def check_table(unit: nn.Module, table: TensorTable, total: int, inputs: dict[str, Tensor], entry: Tensor, words: str) -> None:
    """Raise ValueError, naming the module, if a unit does not compute the same with and without tiles.

    Args:
        unit: not in tiles yet; it is not changed.
        total: number of tiles.
        inputs: of a few samples.
        entry: (samples, tokens, width): only its shape and device are used.
        words: names family and unit.
    """
    subject = _Subject(unit, inputs, entry)
    together = copy.deepcopy(subject.unit)
    tile_unit(together, table, Tiles(total), words)
    layers = tiled_layers(together)
    members = _Apart(subject, table, total, words)
    rows = [name for name, layer in layers.items() if isinstance(layer, TiledRow)]
    whole = subject.computed(subject.unit, rows)
    try:
        tiles = subject.computed(together, rows)
        apart = members.computed(rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{words}: in {total} tiles it does not compute ({error}); its tensor_table names {', '.join(layers)}: {REMEDY}"
        ) from error
    _check_asked(together, words)
    _check_rounding(whole, tiles, apart, f"{words}: in {total} tiles")
    for name, expected in tiles.items():
        if not torch.equal(apart[name], expected):
            raise ValueError(
                f"{words}: {name} has other bits where tiles are computed apart, so something between column and row layers "
                "knows how many tiles there are (an activation that is no module beside its layer, a norm over the inner width); "
                "set training.tensor_tiles.inner to 1, or repair the family"
            )


def _check_rounding(whole: Results, tiles: Results, apart: Results, words: str) -> None:
    """Compare results up to rounding: outputs first, in the order of the forward, so that the error names the first wrong one."""
    for kind in (OUTPUT, GRADIENT):
        results = {name: one for name, one in whole.items() if name.startswith(kind)}
        largest = max(float(one.norm()) for one in results.values())
        for name, expected in results.items():
            if not all(_agree(found[name], expected, largest) for found in (tiles, apart)):
                raise ValueError(
                    f"{words} {name} is not that of the whole; its tensor_table is wrong there, or in what comes before: {REMEDY}"
                )


class _Subject:
    """A copy of a unit in float64 and eval mode, with its inputs. Noise is added to its weights, since initial biases of zero
    would hide errors."""

    def __init__(self, unit: nn.Module, inputs: dict[str, Tensor], entry: Tensor) -> None:
        self.unit = copy.deepcopy(unit).double().eval()
        generator = torch.Generator().manual_seed(seed_of("tiles"))

        def drawn(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)

        self._entry, self._direction = drawn(entry), drawn(entry)
        self._inputs = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
        for parameter in self.unit.parameters():
            parameter.requires_grad_()
            with torch.no_grad():
                parameter.add_(drawn(parameter), alpha=0.02)

    def computed(self, unit: nn.Module, rows: list[str]) -> Results:
        """Outputs of the named row layers and of the unit, in the order of the forward; gradients of the unit's input and
        parameters."""
        found: Results = {}

        def keeping(name: str) -> Callable[..., None]:
            return lambda module, arguments, output: found.update({OUTPUT + name: output.detach()})

        handles = [unit.get_submodule(name).register_forward_hook(keeping(name)) for name in rows]
        entry = self._entry.clone().requires_grad_()
        output = unit(entry, self._inputs)
        output.backward(self._direction)
        for handle in handles:
            handle.remove()
        gradients = {GRADIENT + name: one.grad for name, one in unit.named_parameters() if one.grad is not None}
        return {**found, UNIT: output.detach(), ENTRY: entry.grad, **gradients}


class _Apart:
    """The unit computed by one thread for each tile, which holds that tile only."""

    def __init__(self, subject: _Subject, table: TensorTable, total: int, words: str) -> None:
        self._subject, self._barrier = subject, threading.Barrier(total)
        self._slots: list[Tensor] = [torch.empty(0)] * total
        self._units: list[nn.Module] = []
        for tile in range(total):
            unit = copy.deepcopy(subject.unit)
            self._units.append(unit)
            tile_unit(unit, table, Tiles(total, tile, 1, lambda node, tile=tile: self._join(tile, node)), words)

    def computed(self, rows: list[str]) -> Results:
        """The results as of the whole unit: tiles concatenated, results that all threads have alike once. Raises RuntimeError if
        a thread fails, or if threads differ in results that they should have alike."""
        with ThreadPoolExecutor(len(self._units)) as threads:
            found = list(threads.map(lambda unit: self._member(unit, rows), self._units))
        layers, first = tiled_layers(self._units[0]), found[0]
        results: Results = {}
        for name in first:
            owner, _, leaf = name.removeprefix(GRADIENT).rpartition(".")
            layer = layers.get(owner)
            if layer is not None and (leaf == "weight" or layer.cut.is_column):
                results[name] = layer.cut.whole([one[name] for one in found])
                continue
            if not all(torch.equal(one[name], first[name]) for one in found):
                raise RuntimeError(f"{name} is another one in another tile, and no row layer has summed it")
            results[name] = first[name]
        return results

    def _member(self, unit: nn.Module, rows: list[str]) -> Results:
        try:
            return self._subject.computed(unit, rows)
        except BaseException:
            self._barrier.abort()
            raise

    def _join(self, tile: int, node: Tensor) -> Tensor:
        self._slots[tile] = node
        self._barrier.wait()
        total = pairwise(self._slots)
        self._barrier.wait()
        return total


def _check_asked(unit: nn.Module, words: str) -> None:
    """Check that column layers which the table declares to read one input were all called with it."""
    layers = tiled_layers(unit)
    names = {layer: name for name, layer in layers.items()}
    for layer in layers.values():
        if isinstance(layer, TiledColumn) and layer.together.waiting:
            listed = " and ".join(names[member] for member in layer.together.members)
            raise ValueError(f"{words}: its tensor_table puts {listed} together, and they do not read one input; correct it")


def _agree(found: Tensor, expected: Tensor, largest: float) -> bool:
    """Whether two results differ by rounding only; NaN counts as a difference."""
    if found.shape != expected.shape:
        return False
    return bool((found - expected).norm() <= TOLERANCE * max(float(expected.norm()), VANISHING * largest))
