"""A family's table is not believed: one block of each kind computes in tiles what it computes without them.

It is computed three times: whole; in tiles, all of them here; and each tile by itself, by as many threads as there are tiles,
which exchange sums as workers of a group would. The tiles together and apart must have equal bits: that is what lets any number
of workers share them. The tiles and the whole agree but for rounding, since their sums are made in another order: that is why
there is a tolerance. All compute in float64, where rounding is a billionth of it, and what a wrong table does is a hundredth or
more.
"""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from frostline_contract.seeds import seed_of
from frostline_trainer.sharded.install import tile_unit, tiled_layers
from frostline_trainer.sharded.linear import TiledColumn, TiledRow
from frostline_trainer.sharded.table import TensorTable
from frostline_trainer.sharded.tiles import Tiles, pairwise

TOLERANCE = 1e-5
VANISHING = 1e-3
"""Of the largest result: what is smaller (a key's bias has no gradient but rounding) is held to this much of it."""
REMEDY = "correct it, or set training.tensor_tiles.inner to 1"
OUTPUT, GRADIENT = "the output of ", "the gradient of "
UNIT, ENTRY = f"{OUTPUT}the unit", f"{GRADIENT}the unit's input"

Results = dict[str, Tensor]
"""By what they are, in words."""


def check_table(unit: nn.Module, table: TensorTable, total: int, inputs: dict[str, Tensor], entry: Tensor, words: str) -> None:
    """Raise ValueError, naming the module, where a unit does not compute in tiles what it computes without them.

    Args:
        unit: not in tiles yet; left as it is.
        total: tiles.
        inputs: of a few samples.
        entry: (samples, tokens, width): its shape and device count.
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
    """Outputs first, in the order of the forward: so the first thing that is wrong is named."""
    for kind in (OUTPUT, GRADIENT):
        results = {name: one for name, one in whole.items() if name.startswith(kind)}
        largest = max(float(one.norm()) for one in results.values())
        for name, expected in results.items():
            if not all(_agree(found[name], expected, largest) for found in (tiles, apart)):
                raise ValueError(
                    f"{words} {name} is not that of the whole; its tensor_table is wrong there, or in what comes before: {REMEDY}"
                )


class _Subject:
    """A copy of a unit in float64 and eval mode, with weights that hide nothing (biases begin as zeros), and what it computes
    on."""

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
        """The outputs of the row layers that are named and of the unit, in the order of the forward; the gradients of the unit's
        input and parameters."""
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
    """A thread for each tile, which holds that tile alone."""

    def __init__(self, subject: _Subject, table: TensorTable, total: int, words: str) -> None:
        self._subject, self._barrier = subject, threading.Barrier(total)
        self._slots: list[Tensor] = [torch.empty(0)] * total
        self._units: list[nn.Module] = []
        for tile in range(total):
            unit = copy.deepcopy(subject.unit)
            self._units.append(unit)
            tile_unit(unit, table, Tiles(total, tile, 1, lambda node, tile=tile: self._join(tile, node)), words)

    def computed(self, rows: list[str]) -> Results:
        """As of the whole unit: parts put together, what all have alike once. Raises RuntimeError where it does not compute, or
        where two threads differ in what they should have alike."""
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
    """Column layers that are said to read one input have all been asked for it."""
    layers = tiled_layers(unit)
    names = {layer: name for name, layer in layers.items()}
    for layer in layers.values():
        if isinstance(layer, TiledColumn) and layer.together.waiting:
            listed = " and ".join(names[member] for member in layer.together.members)
            raise ValueError(f"{words}: its tensor_table puts {listed} together, and they do not read one input; correct it")


def _agree(found: Tensor, expected: Tensor, largest: float) -> bool:
    """Whether two results are apart by rounding alone; what is no number is apart."""
    if found.shape != expected.shape:
        return False
    return bool((found - expected).norm() <= TOLERANCE * max(float(expected.norm()), VANISHING * largest))
