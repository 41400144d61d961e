"""From workers' measurements to the planner's inputs."""

from dataclasses import replace
from typing import Any

import pytest

from frostline_contract.job import parse_job
from frostline_contract.statistics import CacheProfile, LinkProfile, SizeProfiles, UnitProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.adapter import Situation, choose_placement, plan_inputs
from frostline_controller.planner.cache_costs import cache_seconds
from frostline_controller.planner.cheapest import cheapest_placement
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.planner.measurements import of_one_machine, reference_profile
from frostline_controller.run.pinned import PinnedShape


def worker(name: str, *seconds: float) -> Worker:
    units = tuple(
        UnitProfile(
            forward_seconds=one,
            backward_seconds=2 * one,
            parameter_bytes=1,
            optimizer_bytes=2,
            activation_bytes=3,
            output_bytes=4,
        )
        for one in seconds
    )
    profile = KeptProfile.of(WorkerProfile(micro_batch_size=4, units=units))
    return Worker(f"{name}/1", name, name, 1, "127.0.0.1", 1, profile, registered_at=0.0, last_received=0.0)


def test_workers_of_several_machines_are_judged_by_the_median_one() -> None:
    workers = (worker("a", 0.9, 0.9), worker("b", 0.1, 0.3), worker("c", 0.2, 0.4))
    assert reference_profile(workers, one_machine=False) == workers[2].profile.record()
    assert reference_profile(workers[1:], one_machine=False) == workers[1].profile.record()


def test_on_one_machine_noise_only_adds() -> None:
    workers = (worker("a", 0.1, 0.9), worker("b", 0.8, 0.2))
    chosen = reference_profile(workers, one_machine=True)
    assert [(unit.forward_seconds, unit.backward_seconds) for unit in chosen.units] == [(0.1, 0.2), (0.2, 0.4)]
    assert chosen.units[0].parameter_bytes == 1
    assert reference_profile(workers[:1], one_machine=True) == workers[0].profile.record()


def test_workers_with_shares_of_a_processor_are_judged_by_the_median_of_each_unit() -> None:
    """They count their own processor time, to which other load adds nothing but what it does to caches, in steps as well."""
    workers = []
    for name, seconds in (("a", (0.1, 0.9)), ("b", (0.8, 0.2)), ("c", (0.3, 0.4))):
        shared = worker(name, *seconds).profile.record().model_copy(update={"quota_period_seconds": 0.01})
        workers.append(replace(worker(name, *seconds), profile=KeptProfile.of(shared)))
    chosen = reference_profile(tuple(workers), one_machine=True)
    assert [(unit.forward_seconds, unit.backward_seconds) for unit in chosen.units] == [(0.3, 0.6), (0.4, 0.8)]


def test_workers_that_measured_sizes_together_count_as_one() -> None:
    def measured(first: float, second: float, latency: float | None) -> SizeProfiles:
        profiles = [worker("a", seconds).profile.record() for seconds in (first, second)]
        sizes = tuple(one.model_copy(update={"micro_batch_size": size}) for one, size in zip(profiles, (2, 4), strict=True))
        link = LinkProfile(latency_seconds=latency) if latency is not None else None
        return SizeProfiles(profiles=sizes, tied=True, boundary_bytes_per_sample=7, link=link)

    found = of_one_machine([measured(0.5, 0.2, 0.1), measured(0.4, 0.3, 0.3)])
    assert [(one.micro_batch_size, one.units[0].forward_seconds) for one in found.profiles] == [(2, 0.4), (4, 0.2)]
    assert found.link is not None and found.link.latency_seconds == pytest.approx(0.2)
    assert (found.tied, found.boundary_bytes_per_sample) == (True, 7)
    alone = measured(0.5, 0.2, None)
    assert of_one_machine([alone]) == alone


VIT = {"model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"}}
GPT2 = {"model": {"family": "gpt2"}, "task": {"kind": "language_modeling"}, "data": {"source": "stdlib-text"}}
COLUMNS = {"dp": 1, "pp": 1, "tp_columns": 2}


@pytest.mark.parametrize(
    ("of_model", "training", "pinned"),
    [
        (VIT, {"state_ranges": 4}, PinnedShape(degrees={"dp": 2, "pp": 1}, shard="step")),
        (VIT, {"tensor_tiles": {"inner": 2, "rows": 2}}, PinnedShape(degrees=COLUMNS, tensor_rows="split")),
        (GPT2, {"token_cells": 4}, PinnedShape(degrees={"dp": 1, "pp": 2}, schedule="gpipe", slices=2)),
    ],
    ids=["shard", "tensor_rows", "slices"],
)  # fmt: skip
def test_a_shape_by_command_keeps_all_that_it_asks_for_where_workers_are_handed_back(
    of_model: dict[str, Any], training: dict[str, Any], pinned: PinnedShape
) -> None:
    """The job itself asks for another value of each."""
    job = parse_job(of_model | {
        "training": {"steps": 5, "batch_size": 32, "micro_batch_size": 4, **training},
        "placement": {"workers": 4, "objective": "cost", "slices": 1},
    })  # fmt: skip
    situation = Situation(
        num_units=6, freeze_point=0, workers=tuple(worker(name, *(0.1,) * 6) for name in "abcd"), current=None, start={},
        pinned=pinned, steps_left=5, reshape_seconds=1, boundary_bytes_per_sample=64, uncacheable="no", cache_reachable=False,
        train_samples=320, parallel_slots=None,
    )  # fmt: skip
    choice, more = cheapest_placement(job, situation, 4)
    assert pinned.is_in(choice.placement) and more == 0


def test_hits_at_another_boundary_say_nothing_about_the_one_to_plan_for() -> None:
    """While a first pass fills the cache nearly all samples miss; the next boundary is judged by a full cache."""
    job = parse_job(VIT | {
        "training": {"steps": 50, "batch_size": 32, "micro_batch_size": 4}, "placement": {"workers": 1}, "cache": {"use": "auto"},
    })  # fmt: skip
    filling = CacheProfile(fetch_seconds_per_sample=1e-4, fill_seconds_per_sample=1e-4, hit_fraction=0.01)
    one = replace(worker("a", *(0.1,) * 6), cache=filling)
    situation = Situation(
        num_units=6, freeze_point=3, workers=(one,), current=None, start={}, pinned=None, steps_left=50, reshape_seconds=1,
        boundary_bytes_per_sample=64, uncacheable="", cache_reachable=True, train_samples=320, parallel_slots=None,
        cached_point=2,
    )  # fmt: skip
    assert cache_seconds(plan_inputs(job, situation))[2] == 1.0
    assert choose_placement(job, situation).placement.use_cache
    assert cache_seconds(plan_inputs(job, replace(situation, cached_point=3)))[2] == 0.01
    assert cache_seconds(plan_inputs(job, replace(situation, cache_coverage=0.5)))[2] == 0.5
