"""The table of pieces: dense numbers, ranges that cover each unit exactly once, and a unit's number where it is one piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.pieces import COMMON, RANGE_ALIGNMENT, Piece, Pieces
from frostline_contract.plan import NOBODY, GenerationId, Placement, Plan

tables = st.builds(
    Pieces,
    st.integers(1, 9),
    st.integers(1, 7),
    st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True).map(tuple),
)


@given(tables)
def test_numbers_are_dense_and_name_each_piece_once(table: Pieces) -> None:
    pieces = [table.piece(number) for number in range(table.count)]
    every = [Piece(u, tile, r) for u in range(table.num_units) for tile in table.tiles for r in range(table.ranges)]
    assert pieces == every, "by unit, then by tile, then by range"
    assert [table.number(piece) for piece in pieces] == list(range(table.count))
    assert [table.unit_of(number) for number in range(table.count)] == [piece.unit for piece in pieces]
    for unit in range(table.num_units):
        assert list(table.of_unit(unit)) == [number for number, piece in enumerate(pieces) if piece.unit == unit]
        assert [table.place_of(number) for number in table.of_unit(unit)] == list(range(table.per_unit))
    assert table.of_units(reversed(range(table.num_units)))[-1] == table.per_unit - 1
    assert table.units_of(range(table.count)) == list(range(table.num_units))


@given(st.integers(1, 40), st.integers(0, 5000))
def test_ranges_cover_a_layout_exactly_once_and_are_aligned(ranges: int, length: int) -> None:
    bounds = [Pieces(1, ranges).bounds(place, length) for place in range(ranges)]
    assert [element for low, high in bounds for element in range(low, high)] == list(range(length))
    assert all(low % RANGE_ALIGNMENT == 0 or low == length for low, _ in bounds)
    sizes = [high - low for low, high in bounds]
    assert max(sizes) - min(sizes) <= 2 * RANGE_ALIGNMENT, "as even as the alignment allows"


@given(st.integers(1, 100), st.integers(0, 10**9))
def test_with_one_piece_a_unit_numbers_are_the_units(num_units: int, length: int) -> None:
    table = Pieces(num_units)
    assert (table.count, table.per_unit) == (num_units, 1)
    assert [table.piece(unit) for unit in range(num_units)] == [Piece(unit, COMMON, 0) for unit in range(num_units)]
    assert table.bounds(0, length) == (0, length)


@given(st.integers(1, 9), st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4)), st.integers(1, 4))
def test_a_run_in_tiles_has_pieces_of_each_and_of_the_rest(num_units: int, inner: int, hidden: int, ranges: int) -> None:
    count = inner * hidden
    table = Pieces.cut(num_units, ranges, count, hidden)
    assert table.state_tiles == count and Pieces.cut(num_units, ranges) == Pieces(num_units, ranges)
    assert (table == Pieces(num_units, ranges)) == (count == 1)
    assert (table == Pieces.cut(num_units, ranges, count)) == (hidden == 1), "tiles of another grid are other tiles"
    assert table.grid == (inner, hidden)
    tiles = [None, *range(count)] if count > 1 else [None]
    wanted = [(tile, place) for tile in tiles for place in range(ranges)]
    found = [[(table.tile_of(one), table.piece(one).range) for one in table.of_unit(unit)] for unit in range(num_units)]
    assert found == [wanted] * num_units


@pytest.mark.parametrize(("ranges", "tiles"), [(0, (COMMON,)), (1, ())])
def test_a_unit_without_a_piece_is_refused(ranges: int, tiles: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="at least one of both"):
        Pieces(4, ranges, tiles)


# ---- in a plan


def plan_with(**fields: object) -> Plan:
    placement = Placement(degrees={"dp": 1, "pp": 2}, stage_bounds=(0, 1, 2), leaf_bounds=(0, 8), workers=("a", "b"))
    whole = {"generation": GenerationId(incarnation=1, counter=2), "lineage": 0, "start": "continue", "freeze_point": 0}
    return Plan.model_validate(whole | {"placement": placement, "leavers": ("c",)} | fields)


def test_a_plan_tells_state_by_pieces_and_workers_by_index() -> None:
    plan = plan_with(state_ranges=2, source_indices=(0, 2, 1, 1), buddy_indices=(1, 1, NOBODY, NOBODY), uncovered=(2, 3))
    assert (plan.sources, plan.buddies) == (("a", "c", "b", "b"), ("b", "b", "", ""))
    assert (plan.pieces_of("a"), plan.replicas_kept_by("b"), plan.needs("b")) == ([0, 1], [0, 1], [0, 1, 2, 3])
    assert (plan.owners(3), plan.needed_by(0)) == (["b"], ["a", "b"])
    assert plan_with(state_tiles=4).pieces == Pieces.cut(2, tiles=4)
    assert plan_with(state_tiles=4, hidden_tiles=2).pieces == Pieces.cut(2, tiles=4, hidden=2)


def test_a_plan_that_names_workers_by_id_reads_the_same() -> None:
    """As the durable state had it before there were pieces, and as an older worker sends it."""
    older = plan_with(sources=("a", "c"), buddies=("b", ""))
    assert older == plan_with(source_indices=(0, 2), buddy_indices=(1, NOBODY))
    assert (older.state_ranges, older.state_tiles, older.pieces) == (1, 1, Pieces(2))
    assert plan_with(sources=("a", "c"), buddies=("b", ""), state_ranges=0, source_indices=(), buddy_indices=()) == older
    with pytest.raises(ValueError, match="sources name 'd', which is no participant"):
        plan_with(sources=("a", "d"))
    with pytest.raises(ValueError, match=r"pp_degree|degrees|stage_bounds|workers"):
        Plan.model_validate({"sources": ("a", "c")})
