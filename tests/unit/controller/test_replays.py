"""A run that follows another one's decisions has what that run began with."""

from pathlib import Path

import pytest

from frostline_contract.job import dump_job, parse_job
from frostline_contract.job.load import load_job
from frostline_contract.run_directory import RunDirectory
from frostline_controller.local_run.prepared_run import new_run
from tests.unit.controller.synthetic_run import job_values, write_run

AUTO = {"steps": 120, "batch_size": 64, "micro_batch_size": "auto"}


@pytest.fixture
def followed(tmp_path: Path) -> Path:
    """Return a run that froze three units from step 1, and computed its frozen prefix sample by sample."""
    folder = write_run(tmp_path / "followed")
    (folder / "job.yaml").write_text(dump_job(parse_job(job_values(freeze={"interval_steps": 20, "initial_units": 3}))))
    plans = RunDirectory(folder).plans
    plans.write_text(plans.read_text().replace('"kind": "plan",', '"kind": "plan", "prefix_tile": "sample",'))
    return folder


@pytest.mark.parametrize("by", ["the option", "the policy"])
def test_a_replay_begins_as_the_run_that_it_follows(by: str, followed: Path, tmp_path: Path) -> None:
    named = {"policy": {"name": "replay", "replay_of": str(followed)}} if by == "the policy" else {}
    job = parse_job(job_values(elastic={"cache": False}, training=AUTO, freeze={"interval_steps": 20, **named}))
    with new_run(job, out=str(tmp_path / "again"), replay=followed if by == "the option" else None) as run:
        written = load_job(RunDirectory(run.folder).job)
    assert (written.initial_units, written.cache.prefix_tile, written.training.micro_batch_size) == (3, "sample", 8)
    assert written.training.automatic == ()
