"""What a run leaves: every file with its documented keys, a model that plain transformers scores the same, no port."""

import json
from collections.abc import Callable

import psutil
import pytest

from frostline_contract.job import load_job
from tests.chaos.leftovers import held_by_another, listens, ports_of
from tests.e2e.runs import Ended, Workshop

EVENT_KEYS = {
    "time_seconds", "step", "generation", "kind", "freeze_point", "degrees", "num_microbatches", "reason",
    "seconds",
}  # fmt: skip
RECORD_KEYS = {
    "lineage", "step", "loss", "learning_rate", "gradient_norm", "freeze_point", "degrees", "generation",
    "step_seconds", "step_parts", "samples_per_second", "cache_hits", "cache_misses",
}  # fmt: skip


@pytest.fixture(scope="module")
def left(run_on: Callable[[int], Ended]) -> Ended:
    ended = run_on(4)
    assert ended.code == 0, ended.story()
    return ended


def test_result_says_how_it_ended_and_what_happened(left: Ended) -> None:
    result = left.result
    assert {"version", "status", "steps", "wall_seconds", "digest", "final", "settings", "events"} <= set(result)
    assert (result["status"], result["steps"]) == ("completed", 60)
    assert {"loss", "accuracy"} <= set(result["final"])
    assert result["settings"]["dataset_digest"]
    assert result["settings"]["reduction_leaves"] == 8
    assert result["events"] == left.lines("events.jsonl")
    assert all(set(event) >= EVENT_KEYS for event in result["events"])
    kinds = [event["kind"] for event in result["events"]]
    assert kinds.count("freeze") == 2
    assert kinds.count("reshape") >= 3, kinds
    assert "checkpoint" in kinds
    (cache,) = left.events("cache")
    assert cache["use_cache"] and cache["reason"].startswith("on: cache.use is always")


def test_records_statistics_and_plans_have_their_keys(left: Ended) -> None:
    metrics, statistics, plans = (left.lines(name) for name in ("metrics.jsonl", "statistics.jsonl", "plans.jsonl"))
    assert all(set(record) >= RECORD_KEYS for record in metrics)
    assert [entry["number"] for entry in statistics] == [1, 2, 3, 4, 5, 6, 7]
    assert all(len(entry["guard"]["losses"]) == 32 for entry in statistics)
    assert [line["number"] for line in plans if line["kind"] == "decision"] == [1, 2, 3, 4, 5, 6, 7]
    starts = [line["first_step"] for line in plans if line["kind"] == "plan"]
    ends = [line["last_step"] for line in plans if line["kind"] == "plan_end"]
    assert starts == [1, *(end + 1 for end in ends[:-1])], "each generation starts where the one before it ended"
    assert ends[-1] == 60


def test_every_record_lies_in_the_generation_that_it_names(left: Ended) -> None:
    plans = [line for line in left.lines("plans.jsonl") if line["kind"] == "plan"]
    by_name = {f"{plan['generation']['incarnation']}.{plan['generation']['counter']}": plan for plan in plans}
    for record in left.records:
        plan = by_name[record["generation"]]
        assert plan["first_step"] <= record["step"]
        assert plan["placement"]["degrees"] == record["degrees"]


def test_every_interval_says_what_its_members_carried_and_hold(left: Ended) -> None:
    reported = [record for record in left.records if record["usage"]]
    assert [record["step"] for record in reported] == [8, 16, 24, 32, 40, 48, 56]
    for record in reported:
        degrees = record["degrees"]
        assert len(record["usage"]) == degrees["dp"] * degrees["pp"]
        assert all(one["resident"]["weights"] for one in record["usage"])
        assert any({"gradients", "moments"} <= set(one["resident"]) for one in record["usage"]), "some stage learns"
    sent = left.result["traffic"]["sent"]
    assert {"pp", "dp_gradients", "moves", "cache", "other"} <= set(sent)
    assert sent["pp"] == sum(one["sent"].get("pp", 0) for record in reported for one in record["usage"])
    assert set(left.result["traffic"]["last_interval"]) == {one["worker_id"] for one in reported[-1]["usage"]}
    assert "Traffic and resident memory" in (left.folder / "report.html").read_text()


def test_pictures_and_logs(left: Ended) -> None:
    report = (left.folder / "report.html").read_text()
    assert "<svg" in report
    assert 'src="http' not in report
    assert list((left.folder / "tensorboard").glob("events.out.tfevents.*"))
    logs = {log.name for log in (left.folder / "logs").glob("*.log")}
    assert {"controller.log", "cache-server.log", "trainer-0.log", "trainer-3.log"} <= logs
    assert not list(left.folder.rglob("*.new")), "no half-written file"
    assert (left.folder / "tokens.json").stat().st_mode & 0o077 == 0


def test_plain_transformers_score_the_model_the_same(left: Ended) -> None:
    import torch
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    from frostline_trainer.data.load import load_data

    torch.set_num_threads(1)
    model = AutoModelForImageClassification.from_pretrained(left.folder / "model").eval()
    processor = AutoImageProcessor.from_pretrained(left.folder / "model")
    test = load_data(load_job(left.folder / "job.yaml")).test
    batch = test.collate(range(len(test)), [0] * len(test))
    with torch.no_grad():
        output = model(pixel_values=batch["pixel_values"], labels=batch["labels"])
    right = (output.logits.argmax(-1) == batch["labels"]).double().mean().item()
    assert right == pytest.approx(left.result["final"]["accuracy"], abs=1e-12)
    assert output.loss.item() == pytest.approx(left.result["final"]["loss"], rel=1e-5)
    assert list(processor.image_mean) == [0.5]


def test_status_of_a_finished_run(left: Ended, workshop: Workshop) -> None:
    said = workshop.command("status", str(left.folder), "--json")
    assert said.returncode == 0, said.stderr
    status = json.loads(said.stdout)
    assert (status["state"], status["step"], status["total_steps"], status["freeze_point"]) == ("completed", 60, 60, 4)
    assert len(status["workers"]) >= 4
    assert {worker["state"] for worker in status["workers"]} == {"gone"}
    assert all(worker["process_id"] for worker in status["workers"])


def test_nothing_is_left_running_and_no_port_open(left: Ended, preload: str) -> None:
    mentions = []
    for process in psutil.process_iter(["cmdline", "environ", "pid"]):
        words = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
        if any(str(left.folder) in word for word in words):
            mentions.append(process)
    assert mentions == []
    ports = ports_of(left.folder)
    assert list((left.folder / "redis").rglob("redis-*.log")) and len(ports) >= 3, "the controller's, the cache server's, Redis's"
    assert [port for port in ports if listens(port) and not held_by_another(port, left.folder)] == []
