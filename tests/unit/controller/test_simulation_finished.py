"""A finished run is simulated from its measurements, and from the planner's assumptions where it has none."""

from pathlib import Path

import pytest

from frostline_contract.statistics import CacheProfile, LinkProfile, UnitProfile
from frostline_controller.planner.adapter import plan_inputs
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.planner.quota import Quota
from frostline_controller.simulation.finished import read_finished
from frostline_controller.simulation.world import build_world
from tests.unit.controller.synthetic_run import UNITS, write_run

UNIT = UnitProfile(
    forward_seconds=0.01,
    backward_seconds=0.02,
    parameter_bytes=4000,
    optimizer_bytes=8000,
    activation_bytes=100,
    output_bytes=800,
)
MEASURED = {
    "optimizer_seconds_per_byte": 1e-9,
    "quota_period_seconds": 0.01,
    "prefix_cost": 1.5,
    "cache": CacheProfile(fetch_seconds_per_sample=2e-4, fill_seconds_per_sample=3e-4, hit_fraction=0.9),
}


def inputs_of(folder: Path, freeze_point: int, **measured: object) -> PlanInputs:
    """Return the planner's inputs for a run with this profile.json and half a processor a worker."""
    profile = MeasuredProfile(micro_batch_size=8, units=(UNIT,) * UNITS, link=LinkProfile(), **measured)
    (write_run(folder) / "profile.json").write_text(profile.model_dump_json())
    run = read_finished(folder)
    section = run.job.placement.model_copy(update={"worker_cpus": 0.5})
    job = run.job.model_copy(update={"placement": section})
    world = build_world(run.own_cluster(job), job, size=None, measured=run.profile)
    return plan_inputs(job, world.situation(job, freeze_point, None, {}, 10, len(world.workers)))


def test_what_a_run_has_measured_prices_it(tmp_path: Path) -> None:
    found = inputs_of(tmp_path / "run", 2, **MEASURED)
    assert found.optimizer_seconds_per_byte == pytest.approx(1e-9)
    assert found.quota == Quota(0.5, 0.01)
    assert [unit.forward_seconds for unit in found.units[:3]] == pytest.approx([0.015, 0.015, 0.01])
    assert found.cache is not None
    assert (found.cache.fetch_seconds_per_sample, found.cache.fill_seconds_per_sample) == (2e-4, 3e-4)


def test_what_a_run_has_not_measured_is_as_the_planner_assumes(tmp_path: Path) -> None:
    found = inputs_of(tmp_path / "run", 2)
    assert found.optimizer_seconds_per_byte == pytest.approx(PlanInputs.optimizer_seconds_per_byte)
    assert found.quota is None
    assert found.units[0].forward_seconds == 0.01
    assert found.cache is None


@pytest.mark.parametrize(("workers", "each", "nodes"), [(4, 1, [(4, 1)]), (4, 4, [(1, 4)]), (5, 2, [(2, 2), (1, 1)])])
def test_the_workers_of_a_pod_share_a_node(workers: int, each: int, nodes: list[tuple[int, int]], tmp_path: Path) -> None:
    profile = MeasuredProfile(micro_batch_size=8, units=(UNIT,) * UNITS, link=LinkProfile())
    (write_run(tmp_path / "run") / "profile.json").write_text(profile.model_dump_json())
    run = read_finished(tmp_path / "run")
    section = run.job.placement.model_copy(update={"workers": workers, "workers_per_pod": each})
    cluster = run.own_cluster(run.job.model_copy(update={"placement": section}))
    assert [(group.count, group.devices) for group in cluster.nodes] == nodes
