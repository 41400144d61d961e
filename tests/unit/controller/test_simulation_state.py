"""A simulation's cache, finished runs as its start, and the planner on large and on small worlds."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from frostline_contract.job import Job, apply_overrides, parse_job
from frostline_contract.statistics import LinkProfile
from frostline_controller.cli.main import main
from frostline_controller.planner.adapter import choose_placement, plan_inputs
from frostline_controller.planner.model_size import model_size
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.simulation.cluster_file import load_cluster
from frostline_controller.simulation.contents import CacheContents
from frostline_controller.simulation.finished import read_finished
from frostline_controller.simulation.history import by_epoch
from frostline_controller.simulation.question import Question, answer
from frostline_controller.simulation.world import World, build_world
from tests.in_time import fastest_of_three, in_time
from tests.unit.controller.planner_cases import unit
from tests.unit.controller.simulation_cases import (
    EXAMPLES,
    SAMPLES,
    cluster,
    job,
    simulated,
    the_job,
)
from tests.unit.controller.synthetic_run import job_values, write_run
from tests.unit.controller.test_planner_search import brute_force

# ---- the cache's contents


def test_a_cache_fills_in_a_pass_and_what_it_holds_is_advanced() -> None:
    always = job(cache={"use": "always"}, placement={"workers": 1, "reshape_every_freeze": True})
    run = the_job(simulated(points={5.0: 3, 10.0: 5}, job=always))
    cached = [span for span in run.spans if span.freeze_point]
    assert [(span.freeze_point, span.hit_fraction, span.steps) for span in cached] == [
        (3, 0.0, 20), (3, 1.0, 80), (5, 0.0, 20), (5, 1.0, 180)
    ]  # fmt: skip
    computed = [span.cost.parts["prefix_recompute"] for span in cached]
    assert computed[1] == computed[3] == 0
    # Three of the five frozen units are read from the cache, advanced, and written again: one more read a sample.
    cold = the_job(simulated(points={10.0: 5}, job=always)).spans[1]
    assert 0 < computed[2] < cold.cost.parts["prefix_recompute"]
    assert cached[2].cost.parts["cache_fetch"] == pytest.approx(2 * cold.cost.parts["cache_fetch"])


def test_variants_and_memory_limit_what_is_hit() -> None:
    contents = CacheContents(train_samples=100, variants=4, covered=0.5)
    contents.at(3)
    assert contents.hit_fraction == 0.0
    contents.pass_samples(100)
    assert contents.hit_fraction == 0.5 * 0.25
    contents.pass_samples(100)
    assert contents.hit_fraction == pytest.approx(0.5 * (1 - 0.75**2))
    contents.at(0)
    contents.at(3)
    assert contents.hit_fraction == 0.0  # the cache was given up in between


# ---- a finished run


def test_a_finished_run_is_priced_beside_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    measured = MeasuredProfile(micro_batch_size=8, units=(unit(forward=0.004),) * 8, link=LinkProfile())
    (folder / "profile.json").write_text(measured.model_dump_json())
    found = answer(Question(run=read_finished(folder)))
    compared = found.comparison
    assert compared is not None
    # Three plans and two freezes; the steps of the lineage that was cut away do not count.
    assert [(row.first_step, row.steps, row.freeze_point) for row in compared.rows] == [
        (1, 42, 0), (43, 8, 2), (51, 30, 2), (81, 2, 2), (83, 18, 4), (101, 20, 4)
    ]  # fmt: skip
    assert [change.step for change in the_job(found).history.changes] == [43, 83]
    assert main(["simulate", str(folder), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["measured"]["rows"][0]["measured"] == pytest.approx(compared.rows[0].measured)
    assert main(["simulate", str(folder), "--cluster", str(EXAMPLES / "clusters/laptop.yaml")]) == 0
    assert "a profile measured on cpu" in capsys.readouterr().out


def test_a_run_without_a_profile_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(write_run(tmp_path / "run"))]) == 2
    assert "give a run that has measured its units" in capsys.readouterr().err


# ---- how large, and how exact


def large_world() -> tuple[Job, World]:
    """200 units on 16,384 devices of 2,048 nodes."""
    values = {
        "model": {"family": "gpt2", "config": {"n_embd": 2048, "n_layer": 198, "vocab_size": 50_000}},
        "task": {"kind": "language_modeling"},
        "data": {"source": "text", "path": "x", "sequence_length": 2048},
        "training": {"steps": 1000, "batch_size": 4096, "micro_batch_size": 1, "reduction_leaves": 1024},
        "placement": {"workers": 16_384, "workers_per_pod": 8},
    }
    large = parse_job(values | {"name": "large"})
    wide = load_cluster(EXAMPLES / "clusters/eight_h100_nodes.yaml")
    wide = wide.model_copy(update={"nodes": (wide.nodes[0].model_copy(update={"count": 2048}),)})
    return large, build_world(wide, large, size=model_size(large), train_samples=10**6)


@fastest_of_three
def test_200_units_on_16384_devices_are_planned_in_five_seconds() -> None:
    """Measured in this process's processor time, which other programs add little to: 1 to 2 s where the test was written."""
    large, world = large_world()
    assert (world.num_units, len(world.workers)) == (200, 16_384)
    started = time.process_time()
    choice = choose_placement(large, world.situation(large, 0, None, {}, 1000, 16_384))
    first = choice.placement
    after_first = time.process_time()
    start = dict(first.degrees)
    later = choose_placement(large, world.situation(large, 100, first, start, 500, 16_384)).placement
    after_second = time.process_time()
    in_time(after_first - started, 5.0, "the first plan")
    in_time(after_second - after_first, 5.0, "the later plan")
    assert later.predicted_step_seconds < first.predicted_step_seconds, "half of the units are frozen"
    assert "were ruled out by lower bounds" in choice.reason


@pytest.mark.parametrize("seed", range(12))
def test_small_worlds_get_the_best_of_all_placements(seed: int) -> None:
    source = random.Random(seed)
    asked = parse_job(
        apply_overrides(
            job_values(placement={"workers": 6, "schedule": "1f1b"}),
            [f"model.config.num_hidden_layers={source.randrange(1, 5)}", "training.micro_batch_size=8"],
        )
    )
    small = cluster(
        nodes=[{"count": source.randrange(1, 4), "devices": source.randrange(1, 3)}],
        device={"kind": "cpu", "teraflops": source.choice([0.002, 0.2]), "call_seconds": source.choice([0.0, 1e-3])},
    )
    world = build_world(small, asked, size=model_size(asked), train_samples=SAMPLES)
    point = source.randrange(0, world.num_units)
    situation = world.situation(asked, point, None, {}, 100, len(world.workers))
    case = plan_inputs(asked, situation)
    placement = choose_placement(asked, situation).placement
    if placement.use_cache:  # the plain search knows no cache
        case = replace(case, cache_available=False)
        placement = choose_placement(asked, replace(situation, cache_reachable=False)).placement
    assert placement.predicted_step_seconds == pytest.approx(brute_force(case), rel=1e-9)


def test_a_history_by_epoch_needs_the_samples() -> None:
    with pytest.raises(ValueError, match="give --train-samples N"):
        simulated(job=parse_job(job_values(data={"source": "csv", "path": "x"})), train_samples=0, points={1.0: 2})
    assert by_epoch({2: 4, 1: 3}).changes[0].epoch == 1
