"""Checks a family's tensor table: one block of each kind must compute the same with and without tiles.

The block is computed three times: whole; in tiles, all of them in one process; and each tile by a thread of its own, where the
threads exchange sums like the workers of a group. The last two must have equal bits, since any number of workers may share the
tiles. The first two may differ by rounding, since their sums have another order; hence the tolerance. All compute in float64,
where rounding is a billionth of the tolerance, while a wrong table changes results by a hundredth or more. Nothing is dropped
meanwhile, so dropouts are checked by what they are called with.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from frostline_contract.seeds import seed_of
from frostline_trainer.families.base import never_learns
from frostline_trainer.tensor.apart import ENTRY, GRADIENT, OUTPUT, UNIT, Apart, Results
from frostline_trainer.tensor.install import tile_unit, tiled_layers
from frostline_trainer.tensor.linear import TiledColumn, TiledRow
from frostline_trainer.tensor.rows import row_tiles
from frostline_trainer.tensor.table import TensorTable
from frostline_trainer.tensor.tiles import Tiles

TOLERANCE = 1e-5
VANISHING = 1e-3
"""Results below this share of the largest one may differ by as much as one of that size: a key's bias has a gradient of rounding
only."""
REMEDY = "correct it, or set inner, hidden and rows of training.tensor_tiles to 1"


def check_table(unit: nn.Module, table: TensorTable, whole: Tiles, inputs: dict[str, Tensor], entry: Tensor, words: str) -> None:
    """Raise ValueError, naming the module, if a unit does not compute the same with and without tiles.

    Args:
        unit: not in tiles yet; it is not changed.
        whole: all tiles.
        inputs: of a few samples.
        entry: (samples, tokens, width): only its shape and device are used.
        words: names family and unit.
    """
    subject = Subject(unit, inputs, entry)

    def made(tiles: Tiles) -> nn.Module:
        copied = copy.deepcopy(subject.unit)
        tile_unit(copied, table, tiles, words)
        return copied

    together = made(whole)
    others = {"row": whole.rows.total, "hidden": whole.hidden.total}
    beside = "".join(f" and {count} {kind} tiles" for kind, count in others.items() if count > 1)
    layers, where = tiled_layers(together), f"{words}: in {whole.total} tiles{beside}"
    row_layers = [name for name, layer in layers.items() if isinstance(layer, TiledRow)]
    results_of = partial(subject.computed, layers=row_layers)
    ways = three_ways(subject.unit, together, Apart(whole, made), results_of, where, ", ".join(layers))
    _check_asked(together, words)
    compare(*ways, where)
    _check_dropouts(subject, made(Tiles(whole.total, 0, 1, lambda own: own, hidden=whole.hidden)), words)


def _check_dropouts(subject: "Subject", one_tile: nn.Module, words: str) -> None:
    """Check that no dropout sees less where fewer tiles are computed: it draws one mask for all that it sees.

    one_tile: the unit in tiles, of which it computes one, and sums of that one alone. Its results are wrong, its shapes those of
    a group's member.
    """
    of_whole, of_tile = subject.dropped_shapes(subject.unit), subject.dropped_shapes(one_tile)
    for name, shape in of_whole.items():
        if of_tile.get(name, shape) != shape:
            raise ValueError(
                f"{words}: {name} drops elements of the inner width, with one mask for all tiles, so that bits depend on "
                "who computes which tiles; set model.dropout to 0 or training.tensor_tiles.inner to 1, or drop behind row layers"
            )


def three_ways(
    whole: nn.Module, together: nn.Module, apart: Apart, results_of: Callable[[nn.Module], Results], words: str, named: str
) -> tuple[Results, Results, Results]:
    """The results of a unit whole, in tiles, and with each tile apart.

    Raises ValueError if tiles do not compute. words: names the unit and its tiles. named: what the table names.
    """
    expected = results_of(whole)
    try:
        return expected, results_of(together), apart.computed(results_of)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{words} it does not compute ({error}); its tensor_table names {named}: {REMEDY}") from error


def compare(whole: Results, tiles: Results, apart: Results, words: str) -> None:
    """Raise ValueError, naming the result, if a unit computes otherwise whole, in tiles, or with each tile apart."""
    _check_rounding(whole, tiles, apart, words)
    for name, expected in tiles.items():
        if not torch.equal(apart[name], expected):
            raise ValueError(
                f"{words} {name} has other bits where tiles are computed apart, so something between column and row layers "
                "knows how many tiles there are (an activation that is no module beside its layer, a norm over the inner width); "
                "set inner and hidden of training.tensor_tiles to 1, or repair the family"
            )


def _check_rounding(whole: Results, tiles: Results, apart: Results, words: str) -> None:
    """Compare results up to rounding: outputs first, in the order of the forward, so that the error names the first wrong one."""
    for kind in (OUTPUT, GRADIENT):
        results = {name: one for name, one in whole.items() if name.startswith(kind)}
        largest = max(float(one.norm()) for one in results.values())
        for name, expected in results.items():
            if not all(_agree(found[name], expected, largest) for found in (tiles, apart)):
                raise ValueError(
                    f"{words} {name} is not that of the whole; its tensor_table is wrong there, or in what comes before, or "
                    f"with row tiles samples are mixed there: {REMEDY}"
                )


class Subject:
    """A copy of a unit in float64 and eval mode, with its inputs. Noise is added to its weights, since initial biases of zero
    would hide errors."""

    def __init__(self, unit: nn.Module, inputs: dict[str, Tensor], entry: Tensor) -> None:
        self.unit = copy.deepcopy(unit).double().eval()
        never_learns(self.unit, ())  # weights below adapters are checked as all others
        generator = torch.Generator().manual_seed(seed_of("tiles"))

        def drawn(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)

        self._entry, self._direction = drawn(entry), drawn(entry)
        self._inputs = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
        for parameter in self.unit.parameters():
            parameter.requires_grad_()
            with torch.no_grad():
                parameter.add_(drawn(parameter), alpha=0.02)

    def dropped_shapes(self, unit: nn.Module) -> dict[str, torch.Size]:
        """The shapes that each dropout of the unit is called with, by its name, after a forward."""
        found: dict[str, torch.Size] = {}

        def keeping(name: str) -> Callable[..., None]:
            return lambda module, arguments: found.update({name: arguments[0].shape})

        dropouts = {name: one for name, one in unit.named_modules() if isinstance(one, _DropoutNd) and one.p > 0.0}
        handles = [one.register_forward_pre_hook(keeping(name)) for name, one in dropouts.items()]
        with torch.no_grad():
            unit(self._entry, self._inputs)
        for handle in handles:
            handle.remove()
        return found

    def computed(self, unit: nn.Module, layers: Sequence[str] = (), loss: Callable[[Tensor], Tensor] | None = None) -> Results:
        """Outputs of the named layers and of the unit, in the order of the forward; gradients of the unit's input and
        parameters. loss: of each item of the output, which then counts as the unit's output."""
        found: Results = {}

        def keeping(name: str) -> Callable[..., None]:
            return lambda module, arguments, output: found.update({OUTPUT + name: output.detach()})

        handles = [unit.get_submodule(name).register_forward_hook(keeping(name)) for name in layers]
        rows = row_tiles(unit)
        entry, direction = rows.own(self._entry).clone().requires_grad_(), rows.own(self._direction)
        output = unit(entry, self._inputs)
        output = output if loss is None else loss(output)
        output.backward(direction if loss is None else direction[..., 0])
        for handle in handles:
            handle.remove()
        gradients = {GRADIENT + name: one.grad for name, one in unit.named_parameters() if one.grad is not None}
        of_entry = {ENTRY: entry.grad} if entry.grad is not None else {}
        return {**found, UNIT: output.detach(), **of_entry, **gradients}


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
