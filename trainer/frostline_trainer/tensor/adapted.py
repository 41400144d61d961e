"""LoRA adapters beside layers in tiles: of an adapter's two matrices, the one at the inner width is cut as the layer's weight is.

Beside a column layer (hidden to inner), every worker computes the first matrix' product whole, and the second matrix is a column
layer itself: its input is only as wide as the adapter's rank, and so is the gradient that is summed over tiles. Beside a row
layer (inner to hidden), the first matrix is a row layer, whose sum over tiles is as wide as the rank, and every worker computes
the second one's product whole. peft's own layer adds the two products. The weights below the adapter are cut as any layer's.
"""

from torch import nn

from frostline_trainer.tensor.attention import TiledDropout
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.linear import TiledColumn, TiledLinear, TiledRow, Together


def base_of(layer: nn.Module) -> nn.Module:
    """The layer below peft's adapters; a layer without adapters itself."""
    return getattr(layer, "base_layer", layer)  # type: ignore[return-value]


def tile_adapted(layer: nn.Module, below: TiledLinear, site: str) -> None:
    """Let a layer with peft's adapters compute tiles, in place.

    Args:
        layer: peft's layer.
        below: computes tiles in the place of the layer below the adapters.
        site: the layer's name within its unit.
    """
    layer.base_layer = below
    for name in list(layer.lora_A):  # type: ignore[arg-type, union-attr]
        _tile_adapter(layer, name, below, site)


def _tile_adapter(layer: nn.Module, name: str, below: TiledLinear, site: str) -> None:
    """Let one adapter of a layer compute tiles, in place."""
    first, second, dropouts = layer.lora_A, layer.lora_B, layer.lora_dropout
    assert isinstance(first, nn.ModuleDict) and isinstance(second, nn.ModuleDict) and isinstance(dropouts, nn.ModuleDict)
    if below.cut.is_column:
        second[name] = TiledColumn(second[name], Cut(True, parts=below.cut.parts), below.tiles)
        Together([second[name]])
        return
    first[name] = TiledRow(first[name], Cut(False), below.tiles)
    if isinstance(dropouts[name], nn.Dropout):
        dropouts[name] = TiledDropout(dropouts[name], below.tiles, site)
