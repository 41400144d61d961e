"""The cheaper of the two remedies for kernels whose rows depend on their place in the batch, and the run's use of it."""

import pytest

from frostline_contract.job import Job, parse_job
from frostline_contract.plan import MICRO_BATCH, SAMPLE
from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.adapter import Situation, choose_placement
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.planner.tiles import choose_prefix_tile
from frostline_controller.run.durable import RunIdentity

FOUND = "block 0 gives a sample other bits in a tile of 8 x 17 tokens that is reversed (float64)"
UNIT = UnitProfile(forward_seconds=8e-3, backward_seconds=16e-3, parameter_bytes=1000, optimizer_bytes=2000,
                   activation_bytes=1000, output_bytes=1000)  # fmt: skip
PROFILE = WorkerProfile(micro_batch_size=8, units=(UNIT,) * 6, device="cpu", memory_bytes=0)


def choose(wanted: str = "auto", found: str = FOUND, cost: float = 1.5, passes: float = 10.0, boundary_bytes: int = 4000):
    return choose_prefix_tile(wanted, found, cost, PROFILE, boundary_bytes, passes)  # type: ignore[arg-type]


def test_where_nothing_depends_on_a_place_tiles_stay_as_they_are() -> None:
    assert choose(found="") == (MICRO_BATCH, "")


def test_many_passes_repay_one_sample_at_a_time() -> None:
    tile, reason = choose()
    assert tile == SAMPLE
    assert reason.startswith(f"{FOUND}; frozen layers are computed one sample at a time (one sample at a time costs 1.50 x; ")


@pytest.mark.parametrize("changed", [{"passes": 1.0}, {"cost": 40.0}, {"boundary_bytes": 1 << 30}])
def test_else_the_cache_is_refused(changed: dict) -> None:
    tile, reason = choose(**changed)
    assert tile == MICRO_BATCH and "nothing is cached" in reason


def test_the_job_may_say_which() -> None:
    assert choose("sample", found="").tile == SAMPLE
    assert choose("micro_batch") == (MICRO_BATCH, f"{FOUND}; cache.prefix_tile is micro_batch, so nothing is cached")


def identity(**changed: object) -> RunIdentity:
    return RunIdentity.model_validate({
        "probe_digest": "p", "probe_detail": "", "num_units": 6, "steps_per_epoch": 10, "train_samples": 80,
        "dataset_digest": "d", "cacheable": True, "sample_tile_cost": 1.5, **changed,
    })  # fmt: skip


def test_what_a_run_may_cache() -> None:
    assert identity().uncacheable == ""
    assert identity(place_dependence=FOUND, prefix_tile=SAMPLE).uncacheable == ""
    assert FOUND in identity(place_dependence=FOUND).uncacheable
    assert identity(cacheable=False, cache_refusal="flip it").uncacheable == "flip it"
    assert (identity().prefix_cost, identity(prefix_tile=SAMPLE).prefix_cost) == (1.0, 1.5)


@pytest.mark.parametrize(("uncacheable", "used"), [("", True), (FOUND, False)])
def test_the_plan_says_why_nothing_is_cached(uncacheable: str, used: bool) -> None:
    job: Job = parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 1000, "batch_size": 64, "micro_batch_size": 8}, "cache": {"use": "always"},
    })  # fmt: skip
    worker = Worker(worker_id="uid-0/n", pod_name="p", failure_domain="a", process_id=1, store_host="", store_port=1,
                    profile=KeptProfile.of(PROFILE), registered_at=0.0, last_received=0.0)  # fmt: skip
    situation = Situation(
        num_units=6, freeze_point=3, workers=(worker,), current=None, start={}, pinned=None, steps_left=1000,
        reshape_seconds=1.0, boundary_bytes_per_sample=1000, uncacheable=uncacheable, cache_reachable=True, train_samples=640,
        parallel_slots=None,
    )  # fmt: skip
    choice = choose_placement(job, situation)
    assert choice.placement.use_cache is used
    assert used or f"no cache: {FOUND}" in choice.reason
