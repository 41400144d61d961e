"""The grid of tiles: how the tiles of a matrix are numbered, and which of them each member of a group computes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.shape import ParallelShape
from frostline_contract.tile_grid import WHOLE, TileBox, TileGrid

powers = st.sampled_from((1, 2, 4, 8))
grids = st.builds(TileGrid, powers, powers)


@st.composite
def groups(draw: st.DrawFn) -> tuple[TileGrid, ParallelShape]:
    """A grid, and a shape whose groups fit it."""
    grid = draw(grids)
    columns, levels = (draw(powers.filter(lambda degree, most=most: degree <= most)) for most in grid)
    return grid, ParallelShape(draw(st.integers(1, 2)), draw(st.integers(1, 3)), tp_columns=columns, tp_depth=levels)


@given(grids)
def test_tiles_are_numbered_by_inner_tile_and_then_by_hidden_tile(grid: TileGrid) -> None:
    places = [(inner, hidden) for inner in range(grid.inner) for hidden in range(grid.hidden)]
    assert grid.all.numbers == tuple(range(grid.size)) and grid.size == len(places) and grid.all.counts == grid
    for number, (inner, hidden) in enumerate(places):
        one = grid.one(number)
        assert (one.numbers, one.counts, one.place_of(number)) == ((number,), (1, 1), (0, 0))
        assert (list(one.inner), list(one.hidden)) == ([inner], [hidden])
        assert grid.all.place_of(number) == (inner, hidden)


@given(groups())
def test_each_tile_is_one_members_of_any_columns_and_levels(case: tuple[TileGrid, ParallelShape]) -> None:
    """Neighbouring members differ in their level, and each has a box of the grid, of one size and in the grid's order."""
    grid, shape = case
    boxes = [TileBox(grid, *shape.tile_ranges(place, grid)) for place in range(shape.tp_degree)]
    assert sorted(number for box in boxes for number in box.numbers) == list(range(grid.size))
    assert {box.counts for box in boxes} == {(grid.inner // shape.tp_columns, grid.hidden // shape.tp_depth)}
    for place, box in enumerate(boxes):
        assert shape.tiles_of(place, grid) == box.numbers == tuple(sorted(box.numbers))
        coordinate = {axis: shape.mesh.coordinate_on(axis, place) for axis in ("tp_columns", "tp_depth")}
        assert coordinate == {"tp_columns": box.inner.start // len(box.inner), "tp_depth": box.hidden.start // len(box.hidden)}
        assert [box.place_of(number) for number in box.numbers] == [
            (inner, hidden) for inner in range(len(box.inner)) for hidden in range(len(box.hidden))
        ]
    for pp_rank in range(shape.pp_degree):
        for tile in range(grid.size):
            computers = shape.computers_of(pp_rank, tile, grid)
            (place,) = {shape.tp_rank(one) for one in computers}
            assert tile in boxes[place].numbers
            assert [shape.dp_rank(one) for one in computers] == list(range(shape.dp_degree)), "one member a replica"


def test_a_tile_that_a_box_does_not_have_has_no_place() -> None:
    box = TileBox(TileGrid(4, 4), range(2, 4), range(1, 2))
    assert (box.numbers, box.place_of(13)) == ((9, 13), (1, 0))
    for number in (1, 8, 10):
        with pytest.raises(AssertionError, match=rf"tile {number} is none of \(9, 13\)"):
            box.place_of(number)


def test_matrices_that_nothing_cuts_are_one_tile() -> None:
    assert (WHOLE.size, WHOLE.all, WHOLE.all.numbers) == (1, WHOLE.one(0), (0,))
