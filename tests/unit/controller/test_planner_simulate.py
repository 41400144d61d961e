"""The simulator replays a run with the planner that runs there; and the planner is fast at scale."""

import time
from dataclasses import replace

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.job.freezing import ElasticSection
from frostline_contract.statistics import CacheProfile, LinkProfile
from frostline_controller.planner import make_plan
from frostline_controller.planner.simulate import analytic_profiles, cluster_members, fixed_history, next_placement, simulate
from tests.unit.controller.planner_cases import inputs

VIT_B = analytic_profiles(12, 768, 197, 25, 6e12, 1000, head_positions=1, embedding_parameters=768 * 768 + 198 * 768)
LINK = LinkProfile(
    latency_seconds=5e-5, bandwidth_bytes_per_second=5e9, reduce_latency_seconds=1e-4, reduce_bandwidth_bytes_per_second=4e9
)
CLUSTER = inputs(
    VIT_B,
    cluster_members(2, 8, 16 << 30),
    micro_batch_size=25,
    num_microbatches=16,
    reduction_leaves=16,
    link=LINK,
    placement=PlacementSection(workers=16, initial_pp_degree=8),
    measured_reshape_seconds=10.0,
    cache=CacheProfile(fetch_seconds_per_sample=3e-4, fill_seconds_per_sample=3e-4, hit_fraction=1.0),
    cache_available=True,
    train_samples=100_000,
)
HISTORY = fixed_history([0, 5, 8, 10, 11, 12])


def total(**elastic: bool) -> float:
    return simulate(replace(CLUSTER, elastic=ElasticSection(**elastic)), HISTORY, 8, 100_000).total_seconds


def test_analytic_costs_are_those_of_a_transformer():
    assert len(VIT_B) == 14
    forward = sum(unit.forward_seconds for unit in VIT_B) * 6e12 / 25
    assert forward == pytest.approx(2 * 17.5e9, rel=0.02)  # ViT-B/16: 17.5 GMACs an image
    assert sum(unit.parameter_bytes for unit in VIT_B) / 4 == pytest.approx(86.57e6, rel=0.001)


def test_each_part_of_the_elasticity_has_its_share():
    everything, static = total(), total(freeze=False, pipeline=False, replicas=False, cache=False)
    assert everything < total(cache=False) < static
    assert everything < total(replicas=False) < static


def test_a_run_keeps_its_books():
    run = simulate(CLUSTER, HISTORY, 8, 100_000)
    assert [interval.freeze_point for interval in run.intervals] == [0, 5, 8, 10, 11, 12, 12, 12]
    assert (run.intervals[0].pp_degree, run.intervals[0].reshape_seconds) == (8, 0.0)
    assert all(i.pp_degree * i.dp_degree <= 16 for i in run.intervals)
    assert any(interval.reshape_seconds == 10.0 for interval in run.intervals)
    assert run.total_seconds == pytest.approx(sum(i.steps * i.step_seconds + i.reshape_seconds for i in run.intervals))
    assert run.worker_seconds == pytest.approx(sum(i.seconds * i.pp_degree * i.dp_degree for i in run.intervals))
    assert simulate(CLUSTER, HISTORY, 8, 100_000) == run


def test_a_dear_reshape_is_not_made_until_it_must_be():
    dear = replace(CLUSTER, measured_reshape_seconds=1e9)
    run = simulate(dear, fixed_history([0, 2, 2]), 3, 100_000)
    assert next(interval.pp_degree for interval in run.intervals) == 8
    moved = [interval for interval in run.intervals if interval.reshape_seconds]
    assert all("stage 0 has nothing left to train" in interval.reason for interval in moved)
    start = make_plan(dear).placement
    _, reason, reshaped = next_placement(replace(dear, freeze_point=1, current=start, steps_left=100))
    assert reshaped is False
    assert reason.startswith("no reshape")
    eager = replace(
        dear, freeze_point=1, current=start, placement=dear.placement.model_copy(update={"reshape_every_freeze": True})
    )
    assert next_placement(eager)[2] is True


def test_per_replica_batches_grow_with_the_replicas():
    run = simulate(replace(CLUSTER, batch="per_replica"), HISTORY, 8, 100_000)
    first, last = run.intervals[0], run.intervals[-1]
    assert last.dp_degree > first.dp_degree
    assert last.steps < first.steps


@pytest.mark.parametrize(
    ("leaves", "fields"),
    [
        (1024, {}),
        (64, {}),
        (1024, {"worker_memory_bytes": 10 << 30}),
        (64, {"worker_memory_bytes": 40 << 30}),
        (1024, {"objective": "cost"}),
        (64, {"virtual_stages": 2}),
    ],
)
def test_200_units_on_1024_devices_are_planned_in_under_a_second(leaves, fields):
    hidden = 1024 if "worker_memory_bytes" in fields and leaves == 1024 else 4096
    units = analytic_profiles(198, hidden, 2048, 1, 2e14, 50_000, bytes_per_value=2)
    wanted = PlacementSection(workers=1024, **({"worker_memory_bytes": 80 << 30} | fields))
    case = inputs(units, cluster_members(128, 8), num_microbatches=1024, reduction_leaves=leaves, link=LINK, placement=wanted)
    started = time.process_time()
    planned = make_plan(case)
    assert time.process_time() - started < 1.0
    assert len(planned.placement.workers) + len(planned.spares) == 1024
    assert planned.cost.peak_bytes <= wanted.worker_memory_bytes
