"""The mesh: one bijection between global ranks and named coordinates, for any axes; and shapes as named degrees."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.mesh import AXES, JOINED, Mesh, check_degrees, in_words, with_degrees
from frostline_contract.plan import Placement
from frostline_contract.shape import ParallelShape
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message, to_record

NAMES = ("dp", "pp", "tp_columns", "tp_depth", "ep", "cp")


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Up to four axes of any names and order, some of degree 1."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(1, 4))]
    return Mesh(tuple((name, draw(st.integers(1, 4))) for name in names))


shapes = st.builds(
    dict,
    dp=st.integers(1, 4),
    pp=st.integers(1, 4),
    tp_columns=st.integers(1, 3),
    tp_depth=st.integers(1, 2),
)


def brute_force(mesh: Mesh) -> list[dict[str, int]]:
    """Every coordinate in the order of global ranks: the last axis varies fastest."""
    names = [name for name, _ in mesh.axes]
    return [dict(zip(names, indices, strict=True)) for indices in itertools.product(*(range(degree) for _, degree in mesh.axes))]


@given(meshes())
def test_ranks_and_coordinates_are_one_bijection(mesh: Mesh) -> None:
    coordinates = brute_force(mesh)
    assert mesh.size == len(coordinates)
    assert [mesh.coordinate(global_rank) for global_rank in range(mesh.size)] == coordinates
    assert [mesh.global_rank(**at) for at in coordinates] == list(range(mesh.size))
    for axis, _ in mesh.axes:
        assert [mesh.coordinate_on(axis, global_rank) for global_rank in range(mesh.size)] == [at[axis] for at in coordinates]


@given(meshes(), st.data())
def test_a_line_differs_along_its_axis_alone(mesh: Mesh, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from([name for name, _ in mesh.axes]))
    assert sorted(itertools.chain(*mesh.lines(axis))) == list(range(mesh.size)), "the lines hold each rank once"
    for line in mesh.lines(axis):
        assert [mesh.coordinate(member)[axis] for member in line] == list(range(mesh.degree(axis)))
        others = [{name: at for name, at in mesh.coordinate(member).items() if name != axis} for member in line]
        assert all(other == others[0] for other in others)
        assert all(mesh.line(member, axis) == line for member in line)
        assert all(line[mesh.coordinate_on(axis, member)] == member for member in line), "a group's index is the coordinate"


@given(meshes(), st.data())
def test_ranks_at_are_all_that_have_the_indices_given(mesh: Mesh, data: st.DataObject) -> None:
    fixed = data.draw(st.lists(st.sampled_from([name for name, _ in mesh.axes]), unique=True))
    at = {name: data.draw(st.integers(0, mesh.degree(name) - 1)) for name in fixed}
    found = [global_rank for global_rank, coordinate in enumerate(brute_force(mesh)) if at.items() <= coordinate.items()]
    assert list(mesh.ranks_at(**at)) == found


@given(shapes)
def test_a_shape_with_tensor_parallelism_keeps_a_group_together(degrees: dict[str, int]) -> None:
    mesh = Mesh.of(degrees)
    dp, pp, columns, depth = (degrees[axis] for axis in AXES)
    tp_degree = columns * depth
    assert mesh.degree("tp") == tp_degree
    for global_rank in range(mesh.size):
        tp_rank = mesh.coordinate_on("tp", global_rank)
        place = mesh.coordinate_on("dp", global_rank) * pp + mesh.coordinate_on("pp", global_rank)
        assert global_rank == place * tp_degree + tp_rank
        assert mesh.line(global_rank, "tp") == tuple(range(place * tp_degree, (place + 1) * tp_degree)), "neighbouring ranks"
    assert mesh.size == math.prod((dp, pp, columns, depth))


@given(st.integers(1, 9), st.integers(1, 9))
def test_without_it_ranks_are_those_of_a_rectangle(pp_degree: int, dp_degree: int) -> None:
    shape = ParallelShape(pp_degree, dp_degree)
    assert shape.degrees == {"dp": dp_degree, "pp": pp_degree}
    for global_rank in range(pp_degree * dp_degree):
        assert (shape.dp_rank(global_rank), shape.pp_rank(global_rank)) == divmod(global_rank, pp_degree)
        assert shape.global_rank(*divmod(global_rank, pp_degree)) == global_rank
    assert [shape.replica(r) for r in range(dp_degree)] == [
        tuple(range(r * pp_degree, (r + 1) * pp_degree)) for r in range(dp_degree)
    ]
    assert [shape.owners_of(p) for p in range(pp_degree)] == [
        tuple(range(pp_degree * dp_degree))[p::pp_degree] for p in range(pp_degree)
    ]
    assert shape.mesh.line(0, "tp") == (0,), "an axis that is not cut has lines of one"


@given(shapes, st.integers(1, 3))
def test_a_shape_has_its_degrees_again(degrees: dict[str, int], virtual_stages: int) -> None:
    virtual_stages = virtual_stages if degrees["pp"] > 1 else 1
    shape = ParallelShape.of(degrees, virtual_stages)
    assert ParallelShape.of(shape.degrees, virtual_stages) == shape
    assert shape.degrees == check_degrees(degrees) == check_degrees(dict(reversed(degrees.items())))
    assert [shape.pp_rank_of_stage(s) for p in range(shape.pp_degree) for s in shape.stages_of(p)] == [
        p for p in range(shape.pp_degree) for _ in range(virtual_stages)
    ]


@given(st.integers(0, 40), st.integers(1, 6))
def test_shares_are_whole_consecutive_and_even(count: int, dp_degree: int) -> None:
    shape = ParallelShape(1, dp_degree)
    shares = [shape.share_of(count, dp_rank) for dp_rank in range(dp_degree)]
    assert [one for share in shares for one in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ((), "no axis"),
        ((("dp", 0),), "dp_degree is 0; it must be at least 1"),
        ((("dp", True),), "dp_degree is True"),
        ((("dp", 2), ("dp", 2)), "'dp' is named 2 times"),
        ((("", 2),), "no usable name"),
        ((("tp", 2),), "'tp' stands for tp_columns and tp_depth together"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(axes: tuple[tuple[str, int], ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Mesh(axes)


MESH = Mesh.of({"dp": 2, "pp": 3})


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: MESH.global_rank(dp=1), "lacks pp"),
        (lambda: MESH.global_rank(dp=1, pp=3), "pp_rank is 3; with pp_degree 3 it is 0 to 2"),
        (lambda: MESH.ranks_at(ep=0), "'ep' is none of this mesh's: dp, pp"),
        (lambda: MESH.line(0, "ep"), "'ep' is none of this mesh's: dp, pp"),
        (lambda: MESH.coordinate(6), "global_rank is 6; a mesh of .* has ranks 0 to 5"),
        (lambda: MESH.coordinate_on("pp", -1), "global_rank is -1"),
        (lambda: Mesh.of({"dp": 2, "ep": 2}), "degrees name 'ep'; the axes of a shape are dp, pp, tp_columns, tp_depth"),
    ],
)
def test_a_place_that_is_not_there_is_named(ask: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask()


def test_joined_axes_are_neighbours() -> None:
    for parts in JOINED.values():
        first = AXES.index(parts[0])
        assert AXES[first : first + len(parts)] == parts


def test_a_shape_in_words() -> None:
    assert in_words({"dp": 2, "pp": 4}) == in_words({"pp": 4, "dp": 2}) == "pp 4 x dp 2"
    assert in_words({"dp": 2, "pp": 4, "tp_columns": 8}, "*") == "tp_columns 8 * pp 4 * dp 2"
    assert in_words({}) == ""


def test_what_was_written_with_two_numbers_is_read() -> None:
    assert with_degrees({"step": 1, "pp_degree": 4, "dp_degree": 2}) == {"step": 1, "degrees": {"dp": 2, "pp": 4}}
    assert with_degrees({"pp_degree": 0, "dp_degree": 0}) == {"degrees": {}}, "before the first plan"
    assert with_degrees({"pp_degree": 4, "dp_degree": 2, "degrees": {"pp": 1}}) == {"degrees": {"pp": 1}}
    assert with_degrees({"step": 1}) == {"step": 1}
    assert with_degrees(["no record"]) == ["no record"]


FIELDS = {"stage_bounds": (0, 2, 4), "leaf_bounds": (0, 4, 8), "workers": ("a", "b", "c", "d")}


def test_an_older_message_is_read_and_an_older_reader_is_told() -> None:
    placed = Placement(degrees={"dp": 2, "pp": 2}, **FIELDS)
    message = to_message(placed, plan_pb2.Placement)
    assert (message.pp_degree, message.dp_degree, dict(message.degrees)) == (2, 2, {"dp": 2, "pp": 2})
    older = plan_pb2.Placement(pp_degree=2, dp_degree=2, virtual_stages=1, schedule="1f1b", **FIELDS)
    assert to_record(older, Placement) == placed
    assert Placement(pp_degree=2, dp_degree=2, **FIELDS) == placed


def test_placements_are_keys_whatever_form_they_were_read_from() -> None:
    placed, older = Placement(degrees={"pp": 2, "dp": 2}, **FIELDS), Placement(pp_degree=2, dp_degree=2, **FIELDS)
    other = Placement(degrees={"pp": 1, "dp": 4}, **FIELDS | {"stage_bounds": (0, 4), "leaf_bounds": (0, 2, 4, 6, 8)})
    assert len({placed, older, other}) == 2


def test_a_placement_with_tensor_parallelism_crosses_the_wire_and_deals_its_units() -> None:
    fields = FIELDS | {"workers": tuple("abcdefgh")}
    placed = Placement(degrees={"dp": 2, "pp": 2, "tp_columns": 2}, **fields)
    assert to_record(to_message(placed, plan_pb2.Placement), Placement) == placed
    assert placed.shape.world_size == 8
    assert placed.owners(0) == ["a", "b", "e", "f"]
    assert placed.units_of("d") == placed.units_of("h") == [2, 3]


@pytest.mark.parametrize(
    ("degrees", "words"), [({"dp": 2, "ep": 2}, "degrees name 'ep'"), ({"dp": 0, "pp": 2}, "dp_degree is 0")]
)
def test_a_placement_without_a_shape_is_refused(degrees: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Placement(degrees=degrees, **FIELDS)
