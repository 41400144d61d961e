"""A layer that is computed in tiles, and whose weight tiles cut."""

from torch import Tensor, nn

from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.tiles import Tiles


class TiledLayer(nn.Module):
    """A layer computed in tiles. It has the parameters of the layer that it replaces, or the held tiles' part of them.

    Attributes:
        cut: how tiles cut the weight.
        kept: the tiles whose parameters this layer has.
        tiles: the tiles that it computes: the same, with the sums over a group (`install.share_tiles`).
    """

    def __init__(self, layer: nn.Module, one: Cut, tiles: Tiles) -> None:
        super().__init__()
        self.cut, self.kept, self.tiles = one, tiles, tiles
        self.weight = self._held(layer.weight)

    def cuts(self, leaf: str) -> bool:
        """Whether tiles cut the parameter `leaf`: the weight, and a column layer's bias.

        With hidden tiles matrices alone are cut: a tile's column bias would belong to all levels of the group.
        """
        return leaf == "weight" or (self.cut.is_column and self.kept.hidden.total == 1)

    def computed(self, parameter: Tensor) -> Tensor:
        """A parameter for computing with: a layer has the parameters of the tiles that it computes, and of no others."""
        held, computed = self.kept.box, self.tiles.box
        assert held == computed, f"tiles {held.numbers} are held, {computed.numbers} computed"
        return parameter

    def _held(self, parameter: nn.Parameter) -> nn.Parameter:
        """The part of a parameter that belongs to the held tiles."""
        box, found = self.tiles.box, parameter.detach()
        if box.counts == box.grid:
            return parameter
        own = {tile: self.cut.view(found, box.grid.all, tile) for tile in box.numbers}
        return nn.Parameter(self.cut.put_together(found, box.grid.all, box, own), requires_grad=parameter.requires_grad)
