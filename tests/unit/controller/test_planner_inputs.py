"""The planner's inputs, made in each of the ways, follow the job's numerics."""

from typing import Any

import pytest

from frostline_contract.job import Job, parse_job
from frostline_contract.job.automatic import sizes_to_try
from frostline_contract.statistics import LinkProfile, SizeProfiles, WorkerProfile
from frostline_controller.planner.adapter import plan_inputs
from frostline_controller.planner.assumed import assumed_inputs, hardware_for
from frostline_controller.planner.inputs import PlanInputs, with_numerics_of
from frostline_controller.planner.model_size import model_size
from frostline_controller.planner.numerics import measured_inputs
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.simulation.cluster_file import Cluster, DeviceSection, LinkSection, NodeGroup
from frostline_controller.simulation.world import build_world
from tests.unit.controller.planner_cases import unit

WORKERS, UNITS = 4, (unit(),) * 6


def job(**training: Any) -> Job:
    section = {"steps": 100, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 4}
    return parse_job({
        "model": {"family": "gpt2", "config": {"n_embd": 32, "n_layer": 4, "n_head": 4}}, "task": {"kind": "language_modeling"},
        "data": {"source": "stdlib-text", "sequence_length": 16}, "training": {**section, **training},
        "placement": {"workers": WORKERS},
    })  # fmt: skip


def of_a_situation(of: Job) -> PlanInputs:
    cluster = Cluster(
        name="c", nodes=(NodeGroup(count=WORKERS, devices=1),), device=DeviceSection(name="d", kind="cpu"),
        link_between_nodes=LinkSection(**LinkProfile().model_dump()),
    )  # fmt: skip
    profile = MeasuredProfile(micro_batch_size=4, units=UNITS, link=LinkProfile())
    world = build_world(cluster, of, size=None, measured=profile)
    return plan_inputs(of, world.situation(of, 0, None, {}, 10, WORKERS))


def of_assumptions(of: Job) -> PlanInputs:
    return assumed_inputs(of, model_size(of), hardware_for(of, named_devices=False), WORKERS, 0, None)


def of_measured_sizes(of: Job) -> PlanInputs:
    sizes = sizes_to_try(of.training, WORKERS)
    return measured_inputs(
        of, SizeProfiles(profiles=tuple(WorkerProfile(micro_batch_size=one, units=UNITS) for one in sizes)), None
    )


NUMERICS: tuple[dict[str, Any], ...] = (
    {"state_ranges": 4, "compile": True},
    {"token_cells": 2},
    {"tensor_tiles": {"inner": 4, "rows": 2}},
    {"tensor_tiles": {"hidden": 2}},
    {"numerics": "fast"},
)


@pytest.mark.parametrize("made", [of_a_situation, of_assumptions, of_measured_sizes])
@pytest.mark.parametrize("numerics", NUMERICS, ids=lambda one: ", ".join(one))
def test_inputs_follow_the_numerics(numerics: dict[str, Any], made: Any) -> None:
    plain, asked = job(), job(**numerics)
    assert made(asked) == with_numerics_of(asked, made(asked))
    assert with_numerics_of(asked, made(plain)) != made(plain), "these numerics change nothing in the inputs"
