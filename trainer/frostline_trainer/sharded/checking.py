"""A family's table is not believed: one block of each kind computes in tiles what it computes without them.

Sums over tiles are made in another order, so the two agree but for rounding: that is why there is a tolerance. Both compute in
float64, where rounding is a billionth of it, and what a wrong table does is a hundredth or more.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from frostline_contract.seeds import seed_of
from frostline_trainer.families.base import first_tensor
from frostline_trainer.sharded.install import tile_unit, tiled_layers
from frostline_trainer.sharded.linear import TiledColumn
from frostline_trainer.sharded.table import TensorTable
from frostline_trainer.sharded.tiles import Tiles

TOLERANCE = 1e-5
VANISHING = 1e-3
"""Of the largest result: what is smaller (a key's bias has no gradient but rounding) is held to this much of it."""


def check_table(unit: nn.Module, table: TensorTable, tiles: Tiles, inputs: dict[str, Tensor], entry: Tensor, words: str) -> None:
    """Raise ValueError, naming the module, where a unit does not compute in tiles what it computes without them.

    Args:
        unit: not in tiles yet; left as it is.
        inputs: of a few samples.
        entry: (samples, tokens, width): its shape and device count.
        words: names family and unit.
    """
    plain = copy.deepcopy(unit).double().eval()
    drawn = torch.Generator().manual_seed(seed_of("tiles"))
    entry, direction = (torch.randn(entry.shape, generator=drawn, dtype=torch.float64).to(entry.device) for _ in range(2))
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    for parameter in plain.parameters():  # biases begin as zeros, and so would hide a mistake
        parameter.requires_grad_()
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=drawn, dtype=torch.float64).to(parameter.device), alpha=0.02)
    tiled = copy.deepcopy(plain)
    tile_unit(tiled, table, tiles, words)
    layers = [*tiled_layers(tiled), ""]
    whole = _Computed(plain, layers, inputs, entry, direction)
    try:
        parts = _Computed(tiled, layers, inputs, entry, direction)
    except RuntimeError as error:
        raise ValueError(
            f"{words}: in {tiles.total} tiles it does not compute ({error}); correct its tensor_table, which names "
            f"{', '.join(tiled_layers(tiled))}"
        ) from error
    for layer in tiled_layers(tiled).values():
        if isinstance(layer, TiledColumn) and layer.together.waiting:
            raise ValueError(
                f"{words}: its tensor_table puts {' and '.join(_names(tiled, layer))} together, and they do not read one input; correct it"
            )
    for kind in ("output", "gradient"):
        results = getattr(whole, kind)
        least = VANISHING * max(float(one.norm()) for one in results.values())
        for name, expected in results.items():
            found = getattr(parts, kind).get(name)
            if found is None or _differ(found, expected, least):
                raise ValueError(
                    f"{words}: in {tiles.total} tiles the {kind} of {name or 'the unit'} is not that of the whole layer; its tensor_table "
                    "is wrong there, or in what comes before: correct it, or set training.tensor_tiles.inner to 1"
                )


class _Computed:
    """A unit's forward and backward.

    output: of row layers and of the unit (named ""), in the order of the forward. gradient: of all parameters and of the entry.
    """

    def __init__(self, unit: nn.Module, layers: list[str], inputs: dict[str, Tensor], entry: Tensor, direction: Tensor) -> None:
        self.output: dict[str, Tensor] = {}
        entry = entry.clone().requires_grad_()
        handles = [unit.get_submodule(name).register_forward_hook(self._keeping(name)) for name in layers]
        unit(entry, inputs).backward(direction)
        for handle in handles:
            handle.remove()
        self.gradient = {name: parameter.grad for name, parameter in unit.named_parameters() if parameter.grad is not None}
        self.gradient["the entry"] = entry.grad

    def _keeping(self, name: str) -> Any:
        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            self.output[name] = first_tensor(output).detach()

        return keep


def _differ(found: Tensor, expected: Tensor, least: float) -> bool:
    """Whether two results are apart by more than rounding; what is no number is apart."""
    if found.shape != expected.shape:
        return True
    return not bool((found - expected).norm() <= TOLERANCE * max(float(expected.norm()), least))


def _names(unit: nn.Module, layer: TiledColumn) -> list[str]:
    names = {module: name for name, module in tiled_layers(unit).items()}
    return [names[member] for member in layer.together.members]

