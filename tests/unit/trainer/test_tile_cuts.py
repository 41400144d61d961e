"""How tiles cut weights: each element is in one tile, and tiles are views, copies and wholes of the same elements."""

from types import SimpleNamespace

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from frostline_contract.tile_grid import TileBox, TileGrid
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.state import tile_views
from frostline_trainer.tensor.tiles import Tiles, cut, joined


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 3)), st.integers(1, 5), st.integers(0, 1))
def test_tiles_are_aligned_and_give_the_whole_again(held: int, parts: int, width: int, dim: int) -> None:
    shape = [7, 7]
    shape[dim] = held * parts * width
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape)
    tiles = [cut(whole, dim, parts, held, place) for place in range(held)]
    assert all(tile.is_contiguous() and is_aligned(tile) for tile in tiles)
    assert torch.equal(joined(tiles, dim, parts), whole)


CUTS = st.builds(Cut, st.booleans(), st.booleans(), st.sampled_from((1, 3)))


@given(CUTS, st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4)), st.integers(1, 3), st.data())
def test_any_range_of_a_tile_is_in_views_in_the_tiles_order(
    one: Cut, held: int, levels: int, width: int, data: st.DataObject
) -> None:
    assume(levels == 1 or not packs_rows(one))
    whole, grid = matrix(one, TileGrid(held, levels), width), TileGrid(held, levels)
    weight = SimpleNamespace(weight=nn.Parameter(whole.float()))
    layer = TiledLayer(weight, one, Tiles(held, hidden=Hidden(levels)))  # type: ignore[arg-type]
    tiles, low = [elements(one, whole, grid, number) for number in range(grid.size)], data.draw(st.integers(0, 3 * width))
    ends = [data.draw(st.integers(min(low, len(tile)), len(tile))) for tile in tiles]
    expected = [tile[low:high].clone() for tile, high in zip(tiles, ends, strict=True)]
    for tile, high in enumerate(ends):
        views = tile_views(nn.ModuleDict({"layer": layer}), "layer.weight", whole, tile, min(low, high), high)
        assert torch.equal(torch.cat([view.reshape(-1) for view in (*views, whole.view(-1)[:0])]), expected[tile])
        assert all(view.ndim == 1 for view in views if view.is_contiguous()), "moments are shaped like what lies in one"
        for view in views:
            view.fill_(-1)
    left = int((whole >= 0).sum())
    assert left == whole.numel() - sum(map(len, expected)), "each element is in one tile, and views are in place"


@given(CUTS, st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4)), st.integers(1, 3), st.data())
def test_tiles_of_both_widths_are_aligned_and_give_the_whole_again(
    one: Cut, held: int, levels: int, width: int, data: st.DataObject
) -> None:
    assume(levels == 1 or not packs_rows(one))
    grid = TileGrid(held, levels)
    whole = matrix(one, grid, width)
    of_inner = list(one.tiles(whole, grid.all))
    assert [len(wide) for wide in of_inner] == [levels] * held
    tiles = [tile for wide in of_inner for tile in wide]
    assert all(tile.is_contiguous() and is_aligned(tile) for tile in tiles)
    found = {number: tile.flatten() for number, tile in enumerate(tiles)}
    assert all(torch.equal(tile, elements(one, whole, grid, number)) for number, tile in found.items())
    assert torch.equal(one.whole(tiles, levels), whole)
    if one.in_runs(grid.all):
        assert all(map(torch.equal, one.places(whole, grid.all), tiles))
    box, wanted = data.draw(boxes(grid)), data.draw(boxes(grid))
    own = one.put_together(whole, grid.all, box, {number: found[number] for number in box.numbers})
    again = one.put_together(own, box, wanted, {number: found[number] for number in wanted.numbers})
    assert (
        again.shape == one.shape_with(whole, grid.all, wanted)
        and again.numel() == whole.numel() * len(wanted.numbers) // grid.size
    )
    assert all(torch.equal(one.view(again, wanted, number).flatten(), found[number]) for number in wanted.numbers)
    assert [tile.flatten().tolist() for wide in one.tiles(again, wanted) for tile in wide] == [
        found[number].tolist() for number in wanted.numbers
    ]


def packs_rows(one: Cut) -> bool:
    """Whether matrices lie side by side in the weight's rows, which hidden tiles do not cut."""
    return one.parts > 1 and one.dim == 0


def matrix(one: Cut, grid: TileGrid, width: int) -> torch.Tensor:
    """Return a weight of different numbers, whose tiles have this width of each matrix, and 3 along the other one."""
    shape = [3 * grid.hidden, 3 * grid.hidden]
    shape[one.dim] = grid.inner * one.parts * width
    return torch.arange(shape[0] * shape[1]).view(shape)


def elements(one: Cut, whole: torch.Tensor, grid: TileGrid, number: int) -> torch.Tensor:
    """Return a tile's elements row by row, found by each element's own place."""
    rows, columns = torch.meshgrid(*map(torch.arange, whole.shape), indexing="ij")
    inner, hidden = (columns, rows) if one.dim else (rows, columns)
    each = whole.shape[one.dim] // one.parts
    tiles = inner % each // (each // grid.inner) * grid.hidden + hidden // (whole.shape[1 - one.dim] // grid.hidden)
    return whole[tiles == number]


@st.composite
def boxes(draw: st.DrawFn, grid: TileGrid) -> TileBox:
    """Consecutive tiles of both widths, as many as divide the grid."""
    found = []
    for total in grid:
        count = draw(st.sampled_from([one for one in (1, 2, 4) if one <= total]))
        first = draw(st.integers(0, total // count - 1)) * count
        found.append(range(first, first + count))
    return TileBox(grid, *found)


def test_a_packed_layer_gives_each_tile_a_share_of_each_matrix() -> None:
    packed = torch.tensor([[10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33]])
    assert cut(packed, 1, 3, 2, 1).tolist() == [[12, 13, 22, 23, 32, 33]]
