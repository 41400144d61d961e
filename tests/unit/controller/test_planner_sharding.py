"""The planner with `placement.shard`: the replicas that it can use, and the state that they hold."""

import random

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.pieces import Pieces
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.describe import describe
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.plans import buddies_of, sources_of, uncovered_of
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.simulated_step import placement_cost
from tests.hand_made_plans import Layout
from tests.unit.controller.planner_cases import inputs, members, random_units, unit
from tests.unit.controller.test_planner_search import brute_force

RANGES = 4
WORKERS = ("w0", "w1", "w2", "w3")


def sharing(ranges: int = RANGES, shard: str = "step", **fields: object) -> PlanInputs:
    pinned = {name: fields.pop(name) for name in ("pp_degree", "dp_degree") if name in fields}
    return inputs(placement=PlacementSection(workers=64, shard=shard, **pinned), state_ranges=ranges, **fields)


@pytest.mark.parametrize(("dp_degree", "share"), [(1, 1.0), (2, 0.5), (3, 0.5), (4, 0.25)])
def test_a_replica_holds_the_moments_of_its_ranges(dp_degree: int, share: float) -> None:
    """Weights 100 and moments 200; three replicas of four ranges: one has two. Two replicas of a leaf each sum in place, but pack
    what they share out into a second buffer.
    """
    units, leaf_bounds = [unit(parameters=100, activation=0, output=0)], tuple(range(dp_degree + 1))
    whole, shared = (CostModel(one).stage_bytes(0, 1, 0, leaf_bounds) for one in (inputs(units), sharing(units=units)))
    assert whole - shared == 200 * (1 - share) - (100 if dp_degree == 2 else 0)


@pytest.mark.parametrize(("dp_degree", "share"), [(2, 0.5), (3, 0.5), (4, 0.25)])
def test_gathered_at_each_use_a_replica_holds_its_part_of_units_that_learn(dp_degree: int, share: float) -> None:
    """Weights 100 and moments 200 of each unit; a gather holds one unit's weights twice and a part. A frozen unit's stay whole.
    Two replicas pack gradients into a second buffer.
    """
    units, leaf_bounds = [unit(parameters=100, activation=0, output=0)] * 3, tuple(range(dp_degree + 1))
    whole = CostModel(inputs(units, freeze_point=1)).stage_bytes(0, 3, 0, leaf_bounds)
    model = CostModel(sharing(units=units, shard="use", freeze_point=1)).of_shape(1, dp_degree)
    second, gathered = 2 * 100 if dp_degree == 2 else 0, round((2 + 1 / dp_degree) * 100)
    assert whole - model.stage_bytes(0, 3, 0, leaf_bounds) == (3 * 200 + 2 * 100) * (1 - share) - gathered - second


def test_each_use_of_a_unit_that_learns_is_a_gather_and_a_step_has_no_other() -> None:
    """Two replicas receive half of 100 bytes at 50 a second, after a second, forward and backward; they only scatter sums."""
    link = LinkProfile(reduce_latency_seconds=1.0, reduce_bandwidth_bytes_per_second=50.0)
    units = [unit(1.0, parameters=100, activation=0, output=0)] * 3
    step, use = (CostModel(sharing(units=units, shard=one, freeze_point=1, link=link)).of_shape(1, 2) for one in ("step", "use"))
    assert (use.forward[-1] - step.forward[-1], use.backward[-1] - step.backward[-1]) == (2 * 2.0, 2 * 2.0)
    assert use.recompute[-1] == step.recompute[-1]
    gradient = use.gradient_bytes[-1]
    assert step.exchange(gradient, (0, 4, 8)) - use.exchange(gradient, (0, 4, 8)) == 1.0 + gradient / 2 / 50.0


@pytest.mark.parametrize("seed", range(12))
def test_the_plan_with_gathers_at_each_use_equals_brute_force(seed: int) -> None:
    source = random.Random(seed)
    units = random_units(source, 6)
    cap = source.choice([None, 2 * sum(one.parameter_bytes for one in units) + 10**7])
    case = inputs(
        units, source.randrange(1, 7), freeze_point=source.randrange(0, len(units)), state_ranges=RANGES,
        link=LinkProfile(reduce_bandwidth_bytes_per_second=source.choice([2e7, 5e8])),
        placement=PlacementSection(workers=64, schedule="1f1b", shard="use", worker_memory_bytes=cap),
    )  # fmt: skip
    if (least := brute_force(case, frozen_in_stage_0=False)) == float("inf"):
        with pytest.raises(NothingFits):
            make_plan(case)
    else:
        assert make_plan(case).cost.total_seconds == pytest.approx(least, rel=1e-9)


def test_no_plan_has_more_replicas_than_ranges_and_says_why() -> None:
    many = sharing(2, units=4, workers=8)
    assert make_plan(many).placement.dp_degree <= 2
    pinned = make_plan(sharing(2, units=4, workers=8, dp_degree=8))
    assert pinned.placement.dp_degree == 2 and "8 leaves and 2 ranges of shared state allow no more" in pinned.reason
    assert make_plan(inputs(4, 8)).placement.shard == "none", "nobody asked for it"


def test_a_model_fits_that_would_not_without_and_the_plan_tells_it() -> None:
    """Weights 200,000, two buffers of as much for gradients, and of the moments, 400,000, a fourth."""
    units = [unit(parameters=100_000, activation=0, output=0)] * 2
    room = {"memory_bytes": 750_000}
    shared = sharing(units=units, members=members(4, **room), reduction_leaves=4, pp_degree=1)
    planned = make_plan(shared)
    assert planned.placement.degrees == {"dp": 4, "pp": 1} and planned.placement.shard == "step"
    assert "state is shared out: a replica has at most 1 of 4 ranges" in describe(planned, shared)
    with pytest.raises(NothingFits):
        make_plan(inputs(units, members=members(4, **room), reduction_leaves=4,
                         placement=PlacementSection(workers=64, pp_degree=1)))  # fmt: skip


def test_every_share_has_a_buddy_in_another_domain_and_each_owner_gives_its_own() -> None:
    placed, table = Layout(2, 2, shard="step").placement(0), Pieces(8, RANGES)
    domains = dict(zip(WORKERS, ("a", "a", "b", "b"), strict=True))
    buddies = buddies_of(placed, domains, table)
    owners = [placed.owners_of(table, piece) for piece in range(table.count)]
    assert all(len(one) == 1 for one in owners) and {one[0] for one in owners} == set(WORKERS)
    assert all(domains[buddy] != domains[owner] for buddy, (owner,) in zip(buddies, owners, strict=True))
    assert len({buddies.count(worker) for worker in WORKERS}) == 1, "all keep as much"
    assert uncovered_of(placed, domains, buddies, table) == ()
    one_domain = dict.fromkeys(WORKERS, "a")
    assert uncovered_of(placed, one_domain, buddies_of(placed, one_domain, table), table) == tuple(range(table.count))
    assert sources_of(placed, Layout(1, 4).placement(0), table) == tuple(owner for (owner,) in owners)


def test_a_group_shares_its_replicas_ranges_by_tile() -> None:
    """A tile's range has one owner and a buddy elsewhere; what no tile cuts has the group, which needs none in two domains."""
    placed, table = Layout(2, 2, shard="step", tp_columns=2).placement(0), Pieces.cut(8, RANGES, 2)
    workers, owners = placed.workers, [placed.owners_of(table, piece) for piece in range(table.count)]
    of_stages = [workers[0:2], workers[4:6]], [workers[2:4], workers[6:8]]
    for piece, found in enumerate(owners):
        unit, tile, number = table.unit_of(piece), table.tile_of(piece), table.piece(piece).range
        group = of_stages[unit // 4][number * 2 // RANGES]
        assert found == (list(group) if tile is None else [group[tile]])
    assert placed.owners_each == 2 and Layout(2, 2, tp_columns=2).placement(0).owners_each == 4
    for worker in workers:
        assert placed.pieces_of(table, worker) == [piece for piece, own in enumerate(owners) if worker in own]
    near = dict(zip(workers, "aabbccdd", strict=True))
    buddies = buddies_of(placed, near, table)
    assert all(near[buddy] != near[own[0]] for buddy, own in zip(buddies, owners, strict=True))
    assert uncovered_of(placed, near, buddies, table) == ()
    apart = dict(zip(workers, "abababab", strict=True))
    buddies = buddies_of(placed, apart, table)
    assert {piece for piece, buddy in enumerate(buddies) if not buddy} == {
        piece for piece in range(table.count) if table.tile_of(piece) is None
    }
    assert uncovered_of(placed, apart, buddies, table) == ()
    sources = sources_of(placed, Layout(1, 4, tp_columns=2).placement(0), table)
    assert all(source in own for source, own in zip(sources, owners, strict=True))
    assert set(sources) == set(workers), "of several owners those send that keep the unit, in turns"


def left_open(**fields: object) -> PlanInputs:
    pinned = {name: fields.pop(name) for name in ("pp_degree", "dp_degree") if name in fields}
    return inputs(**({"placement": PlacementSection(workers=64, shard="auto", **pinned), "state_ranges": RANGES} | fields))


ROOMY = [unit(parameters=100_000, activation=0, output=0)] * 2


def test_state_is_shared_out_where_nothing_fits_without() -> None:
    tight = {"units": ROOMY, "members": members(4, memory_bytes=750_000), "reduction_leaves": 4, "pp_degree": 1}
    planned = make_plan(left_open(**tight))
    assert planned.placement.shard == "step" and "nothing fits without" in planned.reason
    with pytest.raises(NothingFits):
        make_plan(left_open(**tight, state_ranges=1))
    with pytest.raises(NothingFits):
        make_plan(left_open(**tight, exact_numerics=False))


def test_weights_are_gathered_at_each_use_where_nothing_else_fits() -> None:
    """Of eight units of 300,000 each with moments a replica holds a fourth, beside gradients and one gathered unit."""
    units = [unit(parameters=100_000, activation=0, output=0)] * 8
    tight = {"units": units, "members": members(4, memory_bytes=2_450_000), "reduction_leaves": 4, "pp_degree": 1}
    with pytest.raises(NothingFits):
        make_plan(sharing(**tight))
    planned = make_plan(left_open(**tight))
    assert planned.placement.shard == "use" and planned.placement.dp_degree == 4
    assert "gathered at each use, since nothing else fits" in planned.reason
    assert "of units that learn also weights" in describe(planned, left_open(**tight))
    assert placement_cost(planned.placement, left_open(**tight)).peak_bytes == planned.cost.peak_bytes
    for refused in ({"may_gather": False}, {"members": members(4, memory_bytes=2_300_000)}):
        with pytest.raises(NothingFits):
            make_plan(left_open(**tight | refused))


def test_state_is_not_shared_out_where_all_fits_or_nothing_is_gained() -> None:
    for memory_bytes in (0, 10_000_000):
        planned = make_plan(left_open(units=ROOMY, members=members(4, memory_bytes=memory_bytes), reduction_leaves=4))
        assert planned.placement.shard == "none", memory_bytes


@pytest.mark.parametrize("memory_bytes", range(600_000, 1_500_000, 50_000))
def test_the_choice_is_the_quicker_of_both_by_more_than_the_hysteresis(memory_bytes: int) -> None:
    """With less memory whole state needs a pipeline; shared state fits as replicas."""
    slow = LinkProfile(latency_seconds=0.05, bandwidth_bytes_per_second=1e9)
    room = {"units": ROOMY, "members": members(4, memory_bytes=memory_bytes), "reduction_leaves": 4, "link": slow}
    found = {}
    for shard in ("none", "step"):
        try:
            found[shard] = make_plan(left_open(**room, placement=PlacementSection(workers=64, shard=shard)))
        except NothingFits:
            continue
    if not found:
        with pytest.raises(NothingFits):
            make_plan(left_open(**room))
        return
    seconds = {shard: one.cost.seconds_per_sample for shard, one in found.items()}
    gains = "none" not in found or ("step" in found and seconds["step"] < 0.95 * seconds["none"])
    chosen = make_plan(left_open(**room))
    assert chosen.placement.shard == ("step" if gains else "none")
    assert chosen.cost == found[chosen.placement.shard].cost


def test_the_cost_of_a_placement_counts_the_state_that_it_shares_out() -> None:
    asked = left_open(units=ROOMY, members=members(4, memory_bytes=750_000), reduction_leaves=4, pp_degree=1)
    planned = make_plan(asked)
    assert placement_cost(planned.placement, asked).peak_bytes == planned.cost.peak_bytes
