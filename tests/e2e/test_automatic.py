"""Numerics left to the run: settled before it begins, in its job file, and used by resumes and repetitions of the run."""

from pathlib import Path
from typing import Any

import yaml

from tests.e2e.runs import Ended, Workshop

AUTO: dict[str, Any] = {"training": {"micro_batch_size": "auto", "reduction_leaves": "auto", "steps": 20}}


def training_of(run: Ended) -> dict[str, Any]:
    return yaml.safe_load((run.folder / "job.yaml").read_text())["training"]


def test_what_a_run_settled_is_in_its_job_file_and_a_replay_on_another_placement_has_its_digest(
    workshop: Workshop, tmp_path: Path
):
    first = workshop.run(tmp_path / "first", AUTO, "--workers", "2")
    assert first.code == 0, first.story()
    settled = training_of(first)
    [reported] = first.events("numerics")
    names = f"micro_batch_size {settled['micro_batch_size']} and reduction_leaves {settled['reduction_leaves']} (auto)"
    assert reported["reason"].startswith(names)
    assert names in first.output
    again = workshop.run(tmp_path / "again", AUTO, "--workers", "1", "--replay", str(first.folder))
    assert training_of(again) == settled
    assert again.events("numerics") == []
    assert again.digest == first.digest
