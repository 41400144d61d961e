"""`frostline simulate`: files and questions, freeze histories, and a replay in which the production planner decides."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from frostline_contract.job import parse_job, read_yaml
from frostline_controller.cli.main import main
from frostline_controller.planner.adapter import choose_placement, plan_inputs
from frostline_controller.planner.forecast import forecast
from frostline_controller.simulation.question import Answer
from frostline_controller.simulation.simulate import STATIC_ARM, known_train_samples
from frostline_controller.simulation.world import hardware_of
from frostline_trainer.data.partition import partition
from tests.unit.controller.simulation_cases import (
    ALL_RAILS,
    CLUSTERS,
    DIGITS,
    EXAMPLES,
    SAMPLES,
    SQUAD,
    cluster,
    job,
    simulated,
    the_job,
)
from tests.unit.controller.synthetic_run import job_values, write_run

# ---- files


@pytest.mark.parametrize("file", CLUSTERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("job_file", [DIGITS, SQUAD], ids=lambda path: path.stem)
def test_every_example_cluster_runs_a_small_and_a_large_model(
    file: Path, job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-f", str(job_file), "--cluster", str(file), "--train-samples", "20000", "--set", "training.epochs=3"]
    assert main(["simulate", *words, "--freeze", "1:3,2:5", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    for arm in reported["arms"].values():
        spans = arm["spans"]
        assert sum(span["steps"] for span in spans) == arm["steps"]
        assert arm["device_hours"] == pytest.approx(sum(span["device_hours"] for span in spans))
        for before, after in pairwise(spans):
            assert after["first_step"] == before["first_step"] + before["steps"]
            passed = before["steps"] * before["step_seconds"] + after["reshape_seconds"]
            assert after["start_seconds"] == pytest.approx(before["start_seconds"] + passed)
    assert reported["arms"]["job"]["spans"][-1]["freeze_point"] == 5
    assert reported["arms"]["static"]["speedup"] == 1.0
    rooms = {room["family"]: room["blocks"] for room in reported["sharing"]["largest"]}
    assert not rooms or rooms["data parallel"] <= rooms["tensor columns and depth"] <= rooms["all together"]


def test_the_page_has_each_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "-f", str(DIGITS), "--cluster", str(EXAMPLES / "clusters/laptop.yaml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "device-hours" in capsys.readouterr().out
    page = (tmp_path / "out/simulation.html").read_text()
    assert page.count("Content-Security-Policy") == 1
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in page, "a page without a script allows none"
    for name in ("shape-job", "speed", "bubble", "cache", "device-hours", "money"):
        assert f'id="{name}"' in page
        assert (tmp_path / f"out/{name}.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "out/simulation.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [{cont: 2, devices: 8}]", "nodes.0.count: missing; add it"),
        ("nodes: []", "nodes is empty; give at least one group"),
        ("nodes: [{count: 65536, devices: 8}]", "524288 devices, more than the 65536"),
        ("device: {teraflops: -1}", "device.teraflops is -1: Input should be greater than or equal to"),
        ("device: {terraflops: 1}", "device.terraflops: unknown key; did you mean teraflops?"),
        ("link_between_nodes: {latency_seconds: true, bandwidth_bytes_per_second: 1}", "latency_seconds is true, a truth value"),
        ("device: {units: {micro_batch_size: 1, units: [{}, {}, {}]}}", "device.units.units.0.forward_seconds: missing"),
        ("- 1", "holds list, expected a mapping"),
        ("a: [", "no valid YAML"),
    ],
)
def test_a_mistake_in_a_cluster_file_names_field_value_and_remedy(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    whole = cluster().model_dump(mode="json", exclude_none=True)
    mistake = read_yaml(text) if text != "a: [" else text
    file.write_text(yaml.safe_dump(whole | mistake) if isinstance(mistake, dict) else text)
    assert main(["simulate", "-f", str(DIGITS), "--cluster", str(file)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read (No such file or directory)"), (b"\xff\xfe", "is no UTF-8 text (invalid start byte at byte 0)")],
)
def test_a_cluster_file_that_cannot_be_read_says_what_to_give(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    if content is not None:
        file.write_bytes(content)
    assert main(["simulate", "-f", str(DIGITS), "--cluster", str(file)]) == 2
    assert f"{file}: {said}; give a cluster file with --cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a job and a cluster"),
        (["-f", str(SQUAD), "--cluster", str(CLUSTERS[0])], "give --train-samples N"),
        (["-f", str(DIGITS), "--cluster", str(CLUSTERS[0]), "--policy"], "--policy reads the statistics of a finished run"),
        (["-f", str(DIGITS), "--cluster", str(CLUSTERS[0]), "--freeze", "1:8"], "beyond the model's 8 units; at most 7"),
        (
            ["-f", str(DIGITS), "--cluster", str(CLUSTERS[0]), "--freeze", "1:3", "--set", "elastic.freeze=false"],
            "--freeze: the job's elastic.freeze is false, so that nothing freezes in the arm job; leave --freeze out",
        ),
        (["--explain", "device.speed"], "the cluster file has no field 'device.speed'; did you mean nodes.speed"),
    ],
)
def test_a_question_that_lacks_something_says_what(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_out_that_cannot_be_made_is_refused_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["simulate", "-f", str(DIGITS), "--cluster", str(CLUSTERS[0])]
    assert main([*asked, "--freeze", "1:8", "--out", str(tmp_path / "new")]) == 2
    assert list(tmp_path.iterdir()) == [], "a question that is refused leaves no folder"
    (tmp_path / "file").touch()
    monkeypatch.setattr("frostline_controller.cli.simulate.answer", lambda question: pytest.fail("it was simulated"))
    assert main([*asked, "--out", str(tmp_path / "file" / "out")]) == 2
    assert f"{tmp_path / 'file' / 'out'}: cannot be made (Not a directory); give another --out" in capsys.readouterr().err


def test_explain_documents_the_cluster_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--explain", "nodes"]) == 0
    assert "price_per_device_hour  (float; default 0.0)" in capsys.readouterr().out


def test_a_device_without_a_speed_is_refused_with_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"device\.teraflops is null"):
        simulated(cluster=cluster(device={"kind": "cpu"}))


def test_a_run_that_would_never_begin_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"placement\.min_workers is 5 and the cluster has 4 device\(s\), so that a run would wait"
    ):
        simulated(job=job(placement={"workers": 8, "min_workers": 5}))
    assert the_job(simulated(job=job(placement={"workers": 8, "min_workers": 4}))).steps == 400


def test_a_run_without_a_sample_is_refused() -> None:
    training = {"epochs": 0.1, "batch_size": 64, "micro_batch_size": 8, "batch": "per_replica"}
    with pytest.raises(ValueError, match=r"training\.epochs is 0\.1 and the training samples are 1, so that the run has none"):
        simulated(job=job(training=training), train_samples=1)
    assert the_job(simulated(job=job(training=training), train_samples=10)).steps == 1


@pytest.mark.parametrize("data", [{}, {"max_samples": 300}, {"guard_samples_max": 20}, {"test_fraction": 0.5}])
def test_the_training_samples_of_digits_are_those_that_the_trainer_has(data: dict[str, float]) -> None:
    asked = parse_job(job_values(data={"source": "digits", **data}))
    assert known_train_samples(asked) == len(partition(asked, 1797, own_test=False).train)


# ---- the source of decisions


def test_a_step_is_the_one_that_frostline_plan_predicts() -> None:
    one_node = cluster(nodes=[{"count": 1, "devices": 4}], device={"kind": "gpu", "teraflops": 60.0, "memory_bytes": 0})
    planned = forecast(job(), devices=[4], hardware=hardware_of(one_node)).plans[0].planned
    static = simulated(cluster=one_node).simulation.arms[STATIC_ARM]
    assert static.spans[0].cost == planned.cost
    assert static.seconds == pytest.approx(400 * planned.cost.total_seconds)


@pytest.mark.parametrize("planner", ["optimal", "paper_greedy"])
def test_each_new_shape_is_the_production_planners(planner: str) -> None:
    placement = {"workers": 4, "planner": planner, "reshape_every_freeze": True}
    asked = job(placement=placement)
    found = simulated(job=asked, points={5.0: 3, 10.0: 6})
    world, run = found.simulation.world, the_job(found)
    assert [span.freeze_point for span in run.spans if span.reason] == [0, 3, 6]
    current, start = None, {}
    for span in (span for span in run.spans if span.reason):
        situation = world.situation(asked, span.freeze_point, current, start, 400 - span.first_step + 1, 4)
        assert span.placement == choose_placement(asked, situation).placement
        current, start = span.placement, start or dict(span.placement.degrees)


def test_the_policy_decides_as_it_does_in_a_run() -> None:
    closed = {"policy": {"name": "schedule", "form": "closed", "alpha": 1 / 3}, "rails": {"off": ALL_RAILS.split(", ")}}
    frozen = {span.first_step: span.freeze_point for span in the_job(simulated(job=job(freeze=closed))).spans if span.reason}
    # ceil(6 x (1 - (2/3)^e)) blocks are 2, 4, 5, 5, 6 after so many epochs of 20 steps; decisions take effect 3 steps later.
    assert frozen == {1: 0, 23: 3, 43: 5, 63: 6, 103: 7}
    railed = the_job(simulated(job=job(freeze={"policy": closed["policy"]})))
    assert railed.spans[-1].freeze_point == 4  # cap_total: half of six blocks
    assert min(span.first_step for span in railed.spans if span.freeze_point) > 0.6 * 400
    cap_alone = the_job(simulated(job=job(freeze={"policy": {"alpha": 1 / 3}, "rails": closed["rails"]})))
    assert [span.freeze_point for span in cap_alone.spans if span.reason] == [0, 3, 5, 6, 7]
    by_outputs = the_job(simulated(job=job(freeze={"policy": {"name": "plasticity"}})))
    assert by_outputs.spans[-1].freeze_point == 4, "the boldest history: all but the last block have settled"


@pytest.mark.parametrize("name", ["gradient_argmin", "gradient_change", "information_per_flop"])
def test_a_policy_that_reads_gradients_goes_down_to_the_rails_caps(name: str) -> None:
    railed = the_job(simulated(job=job(freeze={"policy": {"name": name}, "rails": {"warmup_fraction": 0.2}})))
    changes = {span.freeze_point: span.first_step for span in reversed(railed.spans)}
    assert changes == {4: 163, 3: 123, 2: 83, 0: 1}, "a block a decision, a cooldown between two, and half of six blocks in all"


def test_a_replay_freezes_when_the_run_that_it_follows_did(tmp_path: Path) -> None:
    followed = write_run(tmp_path / "followed")  # two units freeze at step 43
    found = the_job(simulated(job=job(freeze={"policy": {"name": "replay", "replay_of": str(followed)}})))
    assert {span.freeze_point: span.first_step for span in reversed(found.spans)} == {2: 43, 0: 1}


def test_a_run_to_follow_that_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "-f", str(DIGITS), "--cluster", str(CLUSTERS[0])]
    assert main([*asked, "--set", f"freeze.policy={{name: replay, replay_of: {tmp_path}/none}}"]) == 2
    said = capsys.readouterr().err
    assert f"freeze.policy.replay_of: {tmp_path}/none: " in said and "give the folder of a run" in said
    assert main([*asked, "--set", "freeze.policy.name=replay"]) == 2
    assert "freeze.policy.replay_of is null; name the run directory to follow" in capsys.readouterr().err


def test_what_the_job_freezes_from_the_start_is_frozen_and_cached_from_the_start() -> None:
    early = job(
        freeze={"initial_units": 3, "policy": {"name": "manual", "points": {5: 5}}, "rails": {"off": ALL_RAILS.split(", ")}}
    )
    found = simulated(job=early, arms=("static", "job"))
    assert [span.freeze_point for span in the_job(found).spans if span.reason] == [3, 5]
    assert the_job(found).spans[0].placement.use_cache
    assert found.simulation.arms["static"].spans[0].freeze_point == 0
    assert the_job(found).seconds < found.simulation.arms["static"].seconds


def test_arms_differ_by_their_parts() -> None:
    arms = ("static", "freezing", "pipeline", "cache", "elastic")
    found = simulated(points={2.0: 5}, arms=arms, job=job(placement={"workers": 4, "pp_degree": None, "initial_pp_degree": 4}))
    runs = found.simulation.arms
    assert {span.freeze_point for span in runs["static"].spans} == {0}
    assert not any(span.placement.use_cache for span in runs["freezing"].spans)
    assert {span.placement.pp_degree for span in runs["freezing"].spans} == {4}
    assert any(span.hit_fraction == 1.0 for span in runs["cache"].spans)
    assert runs["elastic"].seconds < min(runs["freezing"].seconds, runs["static"].seconds)


def test_the_objective_cost_hands_devices_back() -> None:
    fast = the_job(simulated(points={2.0: 5}))
    cheap = the_job(simulated(points={2.0: 5}, job=job(placement={"workers": 4, "objective": "cost"})))
    assert {span.held for span in fast.spans} == {4}
    assert cheap.spans[-1].held == len(cheap.spans[-1].placement.workers) < 4
    assert cheap.device_hours < fast.device_hours
    assert cheap.money == pytest.approx(2.0 * cheap.device_hours)
    assert cheap.seconds > fast.seconds


@pytest.mark.parametrize("objective", ["throughput", "cost"])
@pytest.mark.parametrize(("spare", "held"), [(1, 3), (2, 4), (9, 4)])
def test_spare_workers_are_held_and_paid_for(objective: str, spare: int, held: int) -> None:
    def run(spare_workers: int) -> Answer:
        return simulated(job=job(placement={"workers": 2, "spare_workers": spare_workers, "objective": objective}))

    alone, found = run(0), run(spare)
    ran = the_job(found)
    assert {span.held for span in the_job(alone).spans} == {2}
    assert {span.held for span in ran.spans} == {held}, "the cluster has four devices"
    assert ran.seconds == the_job(alone).seconds, "no spare worker computes"
    assert ran.device_hours == pytest.approx(held / 2 * the_job(alone).device_hours)
    assert ran.money == pytest.approx(2.0 * ran.device_hours)
    assert f"{held - 2} more device(s) are held by placement.spare_workers, and counted" in found.simulation.notes


def test_where_the_batch_grows_the_run_ends_after_its_epochs() -> None:
    values = {"training": {"epochs": 20, "batch_size": 64, "micro_batch_size": 8, "batch": "per_replica"}}
    run = the_job(simulated(job=job(**values), points={5.0: 5}))
    assert run.spans[-1].cost.samples > 64
    assert 0 <= run.samples - 20 * SAMPLES < run.spans[-1].cost.samples
    assert run.steps < 400


def test_slower_nodes_are_told_apart() -> None:
    mixed = [{"count": 1, "devices": 2}, {"count": 1, "devices": 2, "speed": 0.25}]
    world = simulated(cluster=cluster(nodes=mixed)).simulation.world
    speeds = plan_inputs(job(), world.situation(job(), 0, None, {}, 10, 4)).speeds
    assert sorted(speeds) == pytest.approx([0.25, 0.25, 1.0, 1.0]) or sorted(speeds) == pytest.approx([1.0, 1.0, 4.0, 4.0])
