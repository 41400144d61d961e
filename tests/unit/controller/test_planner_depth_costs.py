"""The costs of one member of a group of columns and depth: what it computes, keeps, sends and holds (`planner.tensor`)."""

from dataclasses import replace

import pytest

from frostline_controller.planner.analytic import analytic_profiles
from frostline_controller.planner.inputs import MemberInfo
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.groups import Group, form_groups, ranks_at_home
from frostline_controller.planner.tensor.member_costs import attention_share, cut_unit
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing
from frostline_controller.planner.tensor.traffic import Axes, traffic, traffic_in_runs
from tests.unit.controller.planner_cases import inputs, members, unit
from tests.unit.controller.test_planner_groups import FAST

SHAPES = [(1, 2), (2, 2), (4, 2), (2, 4), (1, 8)]
"""Columns and depth of groups."""


# ---- the bytes sent


def received(columns: int, depth: int, whole: float, axis: str) -> float:
    """Return the elements that a member receives for a sum of `whole` elements on every member of an axis, or for a gather."""
    members = columns if axis == "columns" else depth
    return (members - 1) / members * whole


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_a_block_receives_what_its_exchanges_bring_one_by_one(columns: int, depth: int) -> None:
    """Query, key and value with 3 h outputs, the attention's output, and a feed-forward of 4 h."""
    rows, h = 48, 64
    inner = {"attention": rows * h / columns, "qkv": rows * 3 * h / columns, "feed-forward": rows * 4 * h / columns}
    part = rows * h / depth  # of the hidden width that a level sums
    sums_of_columns = 2 * received(columns, depth, part, "columns")
    gather = received(columns, depth, rows * h, "depth")
    forward = 2 * received(columns, depth, inner["qkv"] + inner["feed-forward"], "depth") + 2 * gather
    backward = 2 * received(columns, depth, inner["attention"] + inner["feed-forward"], "depth") + 2 * gather
    found = traffic_in_runs(Axes(columns, depth), rows, h)
    assert found.depth == pytest.approx(forward + backward)
    assert found.columns == pytest.approx(2 * 2 * sums_of_columns), "two sums in each pass"
    assert traffic_in_runs(Axes(columns, depth), rows, h, backward=False).depth == pytest.approx(forward)
    assert traffic_in_runs(Axes(columns, depth), rows, h, forward=False).depth == pytest.approx(backward)
    closed = (24 / columns + 4) * (depth - 1) / depth * rows * h
    assert found.depth == pytest.approx(closed) and found.replicas == 0.0
    assert found.columns == pytest.approx(8 * (columns - 1) / (columns * depth) * rows * h)


@pytest.mark.parametrize("columns", [1, 2, 4, 8])
def test_a_run_sends_along_columns_what_the_papers_layouts_send(columns: int) -> None:
    """Along the depth it sends more, since each member has the whole hidden activation."""
    for depth, replicas in ((1, 1), (2, 1), (4, 2)):
        axes = Axes(columns, depth, replicas)
        least, found = traffic(axes, 96, 32), traffic_in_runs(axes, 96, 32)
        assert found.columns == pytest.approx(least.columns)
        assert found.depth == pytest.approx(least.depth + 4 * (depth - 1) / depth * 96 / replicas * 32)


# ---- seconds and bytes of a member


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_a_member_holds_its_part_of_the_blocks_that_learn_to_the_byte(columns: int, depth: int) -> None:
    case = inputs(6, 8, freeze_point=2, near_link=FAST, tiled_ends=(True, True))
    size, whole = columns * depth, case.units[2]
    embedding, frozen, block, *_, head = in_groups_as_built(case, Axes(columns, depth), at_home=size).units
    assert (block.parameter_bytes, block.optimizer_bytes) == (whole.parameter_bytes / size, whole.optimizer_bytes / size)
    assert block.activation_bytes == round(whole.activation_bytes * (10 / 34 + 24 / 34 / columns)), "hidden activations are whole"
    assert (block.working_bytes, block.output_bytes) == (whole.working_bytes, whole.output_bytes)
    assert frozen == whole.model_copy(update={"optimizer_bytes": whole.optimizer_bytes // size})
    assert (embedding, head) == (case.units[0], case.units[-1]), "tiles of the vocabulary are in no run with a depth"


def test_products_are_cut_over_both_axes_and_attention_over_columns_alone() -> None:
    nodes = Nodes(devices=8, within=1e9, between=1e8, within_call=1e-5)
    whole = unit(0.1, parameters=2_000_000, output=1_000_000)
    attention = 2 * 1_000_000 / 4 / 2_000_000
    attention /= 1 + attention
    assert attention == pytest.approx(1 / 5)
    share = 0.01 + 0.99 * (attention / 2 + (1 - attention) / 8)
    cut = cut_unit(whole, Sharing(columns=2, depth=4), nodes, micro_batch_size=4)
    columns = 2 * 2 * 1 / 2 * 1e6 / 4 / 1e9 + 2e-5  # two sums of a fourth of the hidden state, a call each
    gathers = 2 * 3 / 4 * 1e6 / 1e9 + 2e-5
    sums = 2 * 3 / 4 * 1e6 / 2 / 1e9
    assert cut.forward_seconds == pytest.approx(0.1 * share + columns + gathers + 7 * sums + 4e-5)
    assert cut.backward_seconds == pytest.approx(0.2 * share + columns + gathers + 5 * sums + 4e-5)
    two = cut_unit(whole, Sharing(depth=2), nodes, micro_batch_size=4)
    moved = 2 * 1 / 2 * 7 * 1e6 / 1e9 + 2 * 1 / 2 * 1e6 / 1e9
    assert two.forward_seconds == pytest.approx(0.1 * (0.01 + 0.99 * (attention + (1 - attention) / 2)) + moved + 4e-5)


@pytest.mark.parametrize(("hidden", "sequence"), [(768, 1024), (4096, 2048), (256, 64)])
def test_attentions_share_is_read_off_a_blocks_bytes(hidden: int, sequence: int) -> None:
    block = analytic_profiles(1, hidden, sequence, 3, 1e12, 1000)[1]
    said = 4 * sequence / (24 * hidden + 4 * sequence)
    assert attention_share(block, 3) == pytest.approx(said, rel=0.01), "biases and norms are weights too"


def test_a_group_over_nodes_pays_the_link_that_each_axis_crosses() -> None:
    """Two columns of four levels on two nodes of four: sums over levels stay at home; the same on nodes of two do not."""
    nodes = Nodes(devices=4, within=1e9, between=1e7)
    whole, way = unit(0.0, output=1_000_000), Sharing(columns=2, depth=4)
    columns, depth = 2 * 2 / 2 * 1e6 / 4, (2 * 7 / 2 + 2) * 3 / 4 * 1e6
    assert cut_unit(whole, way, nodes, 4).forward_seconds == pytest.approx(columns / 1e7 + depth / 1e9)
    assert cut_unit(whole, way, replace(nodes, devices=8), 4).forward_seconds == pytest.approx((columns + depth) / 1e9)
    small = cut_unit(whole, way, replace(nodes, devices=2), 4).forward_seconds
    assert small == pytest.approx(columns / 1e7 + depth * (1 / 3 / 1e9 + 2 / 3 / 1e7))


def test_a_message_is_sent_once_a_group_of_columns_and_depth() -> None:
    case = inputs(6, 8, near_link=FAST)
    assert in_groups_as_built(case, Axes(2, 2), at_home=4).messages == in_groups_as_built(case, Axes(4), at_home=4).messages
    assert in_groups_as_built(case, Axes(2, 2), at_home=4).messages.sent == 1 / 4


# ---- groups over several nodes


def formed(sizes: tuple[int, ...], size: int) -> list[Group]:
    crew = tuple(MemberInfo(f"{node}{place}", node) for node, count in zip("abcd", sizes, strict=False) for place in range(count))
    return form_groups(crew, size)


@pytest.mark.parametrize(
    ("sizes", "size", "nodes", "at_home"),
    [
        ((2, 2), 4, ["aabb"], 2),
        ((4, 4), 8, ["aaaabbbb"], 4),
        ((3, 3), 4, ["aabb"], 2),
        ((4, 3, 4), 8, ["aaaacccc"], 4),
        ((1, 3), 4, ["bbab"], 1),
        ((1, 1, 1, 1), 4, ["abcd"], 1),
        ((4, 4), 4, ["aaaa", "bbbb"], 4),
    ],
)
def test_a_group_over_nodes_has_as_many_neighbours_in_a_node_as_there_can_be(
    sizes: tuple[int, ...], size: int, nodes: list[str], at_home: int
) -> None:
    groups = formed(sizes, size)
    assert ["".join(member.failure_domain for member in group) for group in groups] == nodes
    assert ranks_at_home(groups) == at_home


def test_neighbours_of_which_nothing_is_known_change_nothing() -> None:
    (group,) = formed((2, 2), 4)
    assert ranks_at_home([(*group[:3], None)]) == 2
    assert ranks_at_home([(group[0], None, group[1], None)]) == 4
    assert ranks_at_home([(MemberInfo("x"), MemberInfo("y"))]) == 1


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (2, 2), (1, 1, 2)], ids=str)
def test_a_group_over_nodes_stays_as_it_is(sizes: tuple[int, ...]) -> None:
    (group,) = formed(sizes, 4)
    placed = [replace(member, global_rank=place) for place, member in enumerate(group)]
    assert form_groups(reversed(placed), 4) == [tuple(placed)]


def test_a_group_whose_ranks_lie_in_turns_on_two_nodes_is_put_in_order() -> None:
    """As after a run without groups, whose neighbours in rank lie on two nodes."""
    crew = tuple(replace(member, global_rank=2 * (place % 2) + place // 2) for place, member in enumerate(members(4, per_node=2)))
    assert [member.failure_domain for member in sorted(crew, key=lambda one: one.global_rank)] == ["node-0", "node-1"] * 2
    assert ranks_at_home(form_groups(crew, 4)) == 2
