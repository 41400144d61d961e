"""Tensor parallelism and sharded state on paper: the bytes sent, and groups that the planner treats as one worker."""

import pytest

from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.gathers import with_gathers
from frostline_controller.planner.inputs import MemberInfo
from frostline_controller.planner.tensor.built import as_groups
from frostline_controller.planner.tensor.groups import NoGroups, form_groups_of_nodes
from frostline_controller.planner.tensor.member_costs import COMMON_SECONDS, KEPT_HIDDEN, cut_unit
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing
from frostline_controller.planner.tensor.traffic import FEED_FORWARD, Axes, cube, traffic
from tests.unit.controller.planner_cases import inputs, members, unit

NEAR = LinkProfile(
    latency_seconds=1e-6,
    bandwidth_bytes_per_second=1e11,
    reduce_latency_seconds=1e-6,
    reduce_bandwidth_bytes_per_second=1e11,
)


# ---- the bytes sent


@pytest.mark.parametrize(
    ("side", "tokens", "hidden", "ratio"),
    [(4, 16384, 4096, 3.5), (4, 2048, 12288, 0.72), (2, 16384, 4096, 1.17), (2, 2048, 4096, 0.54)],
)
def test_1d_sends_so_many_times_what_3d_sends_in_a_feed_forward(side: int, tokens: int, hidden: int, ratio: float) -> None:
    """The four check values are given to two digits."""
    ranks = cube(side).size
    one, three = (traffic(axes, tokens, hidden, FEED_FORWARD, backward=False).total for axes in (Axes(columns=ranks), cube(side)))
    assert round(one / three, 2) == ratio


def test_a_block_sends_what_its_closed_form_says() -> None:
    rows, hidden = 6144, 96
    for axes in (Axes(4, 1, 1), Axes(2, 4, 8), Axes(1, 1, 8), cube(3)):
        said = 2 / axes.size * (4 * (axes.columns - 1) + 12 * (axes.depth - 1)) * rows * hidden
        said += 24 / axes.size * (axes.replicas - 1) * hidden**2
        assert traffic(axes, rows, hidden).total == pytest.approx(said, rel=1e-12)


def test_a_cube_that_keeps_no_copies_gathers_inputs_and_weights_twice() -> None:
    """(q - 1) / q^3 (3 MK + 3 KN + 2 MN) for each of a feed-forward's two products."""
    rows, hidden, side = 100, 10, 3
    said = (side - 1) / side**3 * sum(3 * rows * k + 3 * k * n + 2 * rows * n for k, n in ((10, 40), (40, 10)))
    assert traffic(cube(side), rows, hidden, FEED_FORWARD, gathered_again=True).total == pytest.approx(said, rel=1e-12)


def test_an_axis_takes_the_links_that_it_crosses() -> None:
    nodes = Nodes(devices=8, within=100.0, between=10.0, within_call=1.0, between_call=2.0)
    assert nodes.seconds(300.0, degree=1, stride=1, calls=5) == 0.0
    assert nodes.seconds(300.0, degree=4, stride=2, calls=1) == 3.0 + 1.0, "a line of four, two apart, fills a node"
    assert nodes.seconds(300.0, degree=4, stride=8) == 30.0, "neighbours are in different nodes"
    assert nodes.seconds(300.0, degree=4, stride=4) == pytest.approx(1.0 + 20.0), "one neighbour at home, two away"


# ---- a group as one worker


def test_a_block_of_columns_is_cut_but_for_rows_and_norms() -> None:
    nodes = Nodes(devices=8, within=1e9, between=1e8, within_call=1e-5)
    whole = unit(0.1, parameters=4_000_000, activation=34_000, output=1_000_000)
    cut = cut_unit(whole, Sharing(columns=4), nodes, 4)
    assert cut.activation_bytes == 10_000 + 24_000 // 4 == round(34_000 * (KEPT_HIDDEN + (1 - KEPT_HIDDEN) / 4))
    work = 0.1 * (COMMON_SECONDS + (1 - COMMON_SECONDS) / 4)
    sums = 2 * 2 * 3 / 4 * 1e6 / 1e9  # two all-reduces, each twice three quarters of the hidden state
    assert cut.forward_seconds == pytest.approx(work + sums + 4e-5)
    assert cut.backward_seconds == pytest.approx(2 * work + sums + 4e-5)
    split = cut_unit(whole, Sharing(columns=4, rows_split=True), nodes, 4)
    assert split.forward_seconds == pytest.approx(0.1 / 4 + sums + 4e-5), "no byte more, and nothing twice"
    assert split.activation_bytes == 4_000 + 6_000 // 4 + 24_000 // 4, "inputs of column layers are kept as they were gathered"


def test_embedding_and_head_stay_whole_and_a_group_sends_an_activation_once() -> None:
    case = inputs(4, members(8, per_node=4), near_link=NEAR)
    cut = as_groups(case, Sharing(columns=4))
    assert [one.parameter_bytes for one in cut.units] == [4_000_000, 1_000_000, 1_000_000, 4_000_000]
    assert [member.worker_id for member in cut.members] == ["w0", "w4"]
    sent = cut.units[0].output_bytes / cut.for_messages(cut.link).bandwidth_bytes_per_second
    gathered = 75_000 / NEAR.reduce_bandwidth_bytes_per_second
    assert sent == pytest.approx(25_000 / case.link.bandwidth_bytes_per_second + gathered)


def test_groups_lie_in_nodes_and_a_group_is_as_slow_as_its_slowest() -> None:
    crew = (*members(5, per_node=5), *(MemberInfo(f"x{i}", "other", speed=0.5 + i) for i in range(3)))
    groups = form_groups_of_nodes(crew, 2)
    assert [[one.worker_id for one in group] for group in groups] == [["x2", "x1"], ["w0", "w1"], ["w2", "w3"]]
    case = inputs(4, crew)
    assert [one.speed for one in as_groups(case, Sharing(columns=2)).members] == [1.5, 1.0, 1.0]
    with pytest.raises(NoGroups, match="4 columns exceed the 3 workers of a node"):
        as_groups(case, Sharing(columns=4))
    even = inputs(4, members(8, per_node=4))
    assert len(as_groups(even, Sharing(columns=4, depth=2)).members) == 1, "a group with a depth may take whole nodes"
    with pytest.raises(NoGroups, match="groups of 4 are no whole nodes of 3"):
        as_groups(case, Sharing(columns=2, depth=2))


def test_gathered_weights_cost_two_gathers_a_micro_batch_and_leave_each_replica_its_part() -> None:
    """Weights 100 and moments 200 of each unit, on two replicas: half of 300, two gathered copies, the half that is sent, two
    gradient buffers.
    """
    link = LinkProfile(reduce_latency_seconds=1.0, reduce_bandwidth_bytes_per_second=50.0)
    case = inputs([unit(1.0, parameters=100, activation=0, output=0)] * 3, 2, reduction_leaves=2, link=link)
    model = CostModel(as_groups(case, Sharing(shard="use"))).of_shape(1, 2)
    assert model.stage_bytes(0, 3, 0, (0, 1, 2)) == 3 * 300 / 2 + 2.5 * 100 + 2 * 300
    gathered = with_gathers(case, 2).units[0]
    assert (gathered.forward_seconds, gathered.backward_seconds) == (1.0 + 2.0, 2.0 + 2.0)
    assert with_gathers(case, 1) is case
