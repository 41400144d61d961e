"""Placement changes no bit (docs/protocols.md 1): one digest and one list of losses, on any number of workers and through any
reshapes.

The job freezes twice, reshapes at every freeze and by command in between, reads the frozen prefix from the cache, and uses
dropout with seeded masks. Exactness of a single shape against a loop that shares no code with the trainer is tested in
tests/integration/test_exactness.py; here the whole system runs.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from frostline_contract.cpu_groups import CpuGroups, NoCpuGroups
from tests.e2e.conftest import RESHAPES
from tests.e2e.runs import THREE_REPLICAS, Ended, Workshop
from tests.wide_rows import wide_rows


def test_the_job_is_what_it_claims(one_worker: Ended) -> None:
    """The job freezes twice, learns in every step, and reads from the cache; else the comparisons below would prove little."""
    records = one_worker.records
    assert [record["step"] for record in records] == list(range(1, 61))
    assert [record["freeze_point"] for record in records] == [0] * 10 + [2] * 16 + [4] * 34
    assert len(set(one_worker.losses)) == 60
    assert sum(record["cache_hits"] for record in records) > 100
    assert {decision["decision_kind"] for decision in one_worker.decisions} == {"keep", "freeze"}
    assert len(one_worker.digest) == 64


@pytest.mark.parametrize("workers", wide_rows([2, 3, 4, 6], {2, 3, 6}))
def test_any_number_of_workers_ends_with_the_same_bits(workers: int, one_worker: Ended, run_on: Callable[[int], Ended]) -> None:
    ended = run_on(workers)
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    commanded = [(reshape["pp_degree"], reshape["dp_degree"]) for reshape in RESHAPES[workers]]
    assert set(commanded) <= set(ended.shapes), f"{ended.shapes}\n{ended.story()}"
    assert ended.lines("metrics.jsonl")[-1]["lineage"] == 0
    assert sum(record["cache_hits"] for record in ended.records) > 100


UNPLANNED = 64 << 10
"""Bytes that no plan counts: inputs, statistics, rounding up to aligned places."""


def test_a_model_that_does_not_fit_one_worker_is_trained_by_a_pipeline(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    needed = one_worker.plans[0]["placement"]["predicted_peak_bytes"]
    cap = int(0.8 * needed)
    ended = workshop.run(tmp_path / "capped", {"placement": {"worker_memory_bytes": cap}}, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.plans[0]["placement"]["degrees"] == {"dp": 1, "pp": 2}
    assert all(plan["placement"]["predicted_peak_bytes"] <= cap for plan in ended.plans)
    reported = ended.result["memory"]
    assert all(0 < row["tensor_bytes"] <= min(cap, row["planned_bytes"] + UNPLANNED) for row in reported), reported
    assert not ended.events("memory_over_cap")


def test_a_replay_takes_every_decision_from_another_run(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    changes = {"freeze": {"policy": {"name": "gradient_argmin", "points": {}}}, "elastic": {"cache": False}}
    ended = workshop.run(tmp_path / "again", changes, "--workers", "2", "--replay", str(one_worker.folder))
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert {decision["policy"] for decision in ended.decisions} == {"replay"}
    assert sum(record["cache_hits"] for record in ended.records) == 0


def test_verify_confirms_steps_of_every_shape(run_on: Callable[[int], Ended], workshop: Workshop) -> None:
    ended = run_on(4)
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,11,20,27,45,60")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("same bits") == 7
    assert f"digest        {ended.digest}  same" in checked.stdout


def test_verify_finds_a_single_wrong_bit(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "checkpoints").symlink_to(one_worker.folder / "checkpoints")
    (folder / "job.yaml").write_bytes((one_worker.folder / "job.yaml").read_bytes())
    loss = one_worker.losses[29]
    wrong = (one_worker.folder / "metrics.jsonl").read_text().replace(repr(loss), repr(loss * (1 + 2**-52)))
    (folder / "metrics.jsonl").write_text(wrong)
    checked = workshop.command("verify", str(folder), "--steps", "29,30")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert f"loss: recorded {loss * (1 + 2**-52)!r}, computed {loss!r}" in checked.stdout
    assert "1 DIFFER" in checked.stdout


def test_workers_of_one_speed_end_with_the_same_bits(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """Each of three workers has a quarter of a processor, one is killed; the control groups are removed with the run."""
    try:
        ours = CpuGroups.create()
    except NoCpuGroups as reason:
        pytest.skip(str(reason))
    ours.remove()
    kill = {"kind": "kill_worker", "step": 15, "worker": 1, "phase": "exchange"}
    changes = {"placement": {"worker_cpus": 0.25, **THREE_REPLICAS}, "faults": [kill]}
    running = workshop.start(tmp_path / "run", changes, "--workers", "3")
    groups = ours.folder.with_name(f"frostline-{running.process.pid}")
    running.wait_for_step(2)
    inside = [file.read_text().split() for file in groups.glob("*/cgroup.procs")]
    ended = running.end()
    assert ended.code == 0, ended.story()
    assert [len(one) for one in inside] == [1, 1, 1]
    assert ended.digest == one_worker.digest
    assert not groups.exists()
