"""What a job may ask of groups that share stages tile by tile, and what is refused with field, value and remedy."""

from typing import Any

import pytest

from frostline_contract.job import parse_job
from frostline_contract.pieces import Pieces
from frostline_contract.plan import Placement


def job(tiles: int, reshape: dict[str, int] | None = None, **placement: int | None) -> Any:
    reshapes = [{"step": 3, "pp_degree": 1, "dp_degree": 1, **reshape}] if reshape else []
    return parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 9, "tensor_tiles": {"inner": tiles}}, "placement": placement, "reshapes": reshapes,
    })  # fmt: skip


def test_a_group_is_at_most_as_large_as_there_are_tiles() -> None:
    asked = job(4, {"tp_degree": 4}, tp_degree=2)
    assert asked.placement.tp_degree == 2
    assert asked.reshapes[0].degrees == {"dp": 1, "pp": 1, "tp_columns": 4}
    assert job(1, {}).reshapes == ()


def test_groups_may_share_out_the_state_of_their_replicas() -> None:
    values = {"step": 3, "pp_degree": 1, "dp_degree": 2, "tp_degree": 2, "shard": "step"}
    asked = parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 9, "tensor_tiles": {"inner": 2}, "state_ranges": 4}, "reshapes": [values],
        "placement": {"tp_degree": None, "shard": "auto"},
    })  # fmt: skip
    assert (asked.reshapes[0].degrees, asked.reshapes[0].shard) == ({"dp": 2, "pp": 1, "tp_columns": 2}, "step")


@pytest.mark.parametrize("tiles", [2, 4])
def test_a_tile_is_owned_by_the_members_that_compute_it(tiles: int) -> None:
    """Two replicas of two stages, of groups of two: consecutive tiles are one member's, and what no tile cuts is everybody's."""
    placement = Placement(
        degrees={"dp": 2, "pp": 2, "tp_columns": 2}, stage_bounds=(0, 1, 2), leaf_bounds=(0, 4, 8), workers=tuple("abcdefgh")
    )
    table = Pieces.cut(2, tiles=tiles)
    owners = ["".join(placement.owners_of(table, piece)) for piece in range(table.count)]
    half = tiles // 2
    assert owners == ["abef", *["ae"] * half, *["bf"] * half, "cdgh", *["cg"] * half, *["dh"] * half]
    assert placement.pieces_of(table, "f") == [0, *range(1 + half, 1 + tiles)]
    assert placement.divides and placement.divides_tiles
    assert [placement.shape.tiles_of(place, table.grid) for place in range(2)] == [
        tuple(range(half)),
        tuple(range(half, tiles)),
    ]


def test_a_tile_of_both_widths_is_owned_by_the_member_at_its_column_and_level() -> None:
    """A group of two columns times two levels, whose neighbouring ranks differ in the level; each has 2 x 1 of 4 x 2 tiles."""
    table = Pieces.cut(1, tiles=8, hidden=2)
    assert table.grid == (4, 2)
    placement = Placement(
        degrees={"dp": 2, "pp": 1, "tp_columns": 2, "tp_depth": 2},
        stage_bounds=(0, 1),
        leaf_bounds=(0, 4, 8),
        workers=tuple("abcdefgh"),
    )
    owners = ["".join(placement.owners_of(table, piece)) for piece in range(table.count)]
    assert owners == ["abcdefgh", *["ae", "bf"] * 2, *["cg", "dh"] * 2]
    assert [placement.shape.tiles_of(place, table.grid) for place in range(4)] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert placement.pieces_of(table, "g") == [0, 5, 7] and placement.owners_each == 8
    columns = placement.model_copy(update={"degrees": {"dp": 1, "pp": 1, "tp_columns": 2}, "workers": tuple("ab")})
    assert [columns.shape.tiles_of(place, table.grid) for place in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize("shard", ["step", "use"])
def test_a_range_of_a_tile_is_owned_by_the_member_of_its_replica_that_computes_the_tile(shard: str) -> None:
    """Of what no tile cuts a range is owned by the group of its replica. Here groups are (a, b) and (c, d)."""
    placement = Placement(
        degrees={"dp": 2, "pp": 1, "tp_columns": 2},
        stage_bounds=(0, 1),
        leaf_bounds=(0, 4, 8),
        workers=tuple("abcd"),
        shard=shard,
    )
    table = Pieces.cut(1, ranges=3, tiles=4)
    owners = ["".join(placement.owners_of(table, piece)) for piece in range(table.count)]
    assert owners == ["ab", "cd", "cd", *["a", "c", "c"] * 2, *["b", "d", "d"] * 2]
    assert [placement.pieces_of(table, worker) for worker in "ac"] == [[0, 3, 6], [1, 2, 4, 5, 7, 8]]
    whole = placement.model_copy(update={"shard": "none"})
    assert ["".join(whole.owners_of(table, piece)) for piece in (2, 4, 13)] == ["abcd", "ac", "bd"]


def test_a_degree_that_is_left_to_the_planner_may_be_any_up_to_the_tiles() -> None:
    assert [job(4, tp_degree=degree).most_tp_degree for degree in (None, 2, 1)] == [4, 2, 1]
    assert job(4).placement.tp_degree == 1, "no group without being asked"
    both = parse_job({**job(4).model_dump(mode="json"), "training": {"steps": 9, "tensor_tiles": {"inner": 4, "hidden": 2}},
                      "placement": {"tp_degree": None, "tp_depth": None}})  # fmt: skip
    assert both.most_tp_degree == 8 and job(4).placement.tp_depth == 1


@pytest.mark.parametrize(
    ("tiles", "reshape", "placement", "words"),
    [
        (1, None, {"tp_degree": 2}, r"placement.tp_degree 2 exceeds training.tensor_tiles.inner 1: .* raise inner in a new run"),
        (4, None, {"tp_degree": 3}, "placement.tp_degree is 3; only powers of two share the tiles"),
        (4, None, {"tp_degree": 4, "pp_degree": 2}, "pp_degree x dp_degree x tp_degree = 8 exceeds workers 4"),
        (2, {"tp_degree": 4}, {}, "reshapes.0.tp_degree 4 exceeds training.tensor_tiles.inner 2"),
    ],
)
def test_what_no_group_can_do_is_refused(tiles: int, reshape: Any, placement: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        job(tiles, reshape, **placement)
