"""Unit costs from FLOPs, and plans of them at scale: the planner is fast."""

import time

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.analytic import analytic_profiles
from frostline_controller.planner.search import make_plan
from tests.in_time import fastest_of_three, in_time
from tests.unit.controller.planner_cases import cluster_members, inputs

VIT_B = analytic_profiles(12, 768, 197, 25, 6e12, 1000, head_positions=1, embedding_parameters=768 * 768 + 198 * 768)
LINK = LinkProfile(
    latency_seconds=5e-5, bandwidth_bytes_per_second=5e9, reduce_latency_seconds=1e-4, reduce_bandwidth_bytes_per_second=4e9
)


def test_analytic_costs_are_those_of_a_transformer():
    assert len(VIT_B) == 14
    forward = sum(unit.forward_seconds for unit in VIT_B) * 6e12 / 25
    assert forward == pytest.approx(2 * 17.5e9, rel=0.02)  # ViT-B/16: 17.5 GMACs an image
    assert sum(unit.parameter_bytes for unit in VIT_B) / 4 == pytest.approx(86.57e6, rel=0.001)


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
@fastest_of_three
def test_200_units_on_1024_devices_are_planned_in_under_a_second(leaves, fields):
    hidden = 1024 if "worker_memory_bytes" in fields and leaves == 1024 else 4096
    units = analytic_profiles(198, hidden, 2048, 1, 2e14, 50_000, bytes_per_value=2)
    wanted = PlacementSection(workers=1024, **({"worker_memory_bytes": 80 << 30} | fields))
    case = inputs(units, cluster_members(128, 8), num_microbatches=1024, reduction_leaves=leaves, link=LINK, placement=wanted)
    started = time.process_time()
    planned = make_plan(case)
    in_time(time.process_time() - started, 1.0, "the plan")
    assert len(planned.placement.workers) + len(planned.spares) == 1024
    assert planned.cost.peak_bytes <= wanted.worker_memory_bytes
