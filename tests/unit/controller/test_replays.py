"""A run that follows another one's decisions has what that run began with, and the same calendar."""

import asyncio
from pathlib import Path

import pytest

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import dump_job, parse_job
from frostline_contract.job.load import load_job
from frostline_contract.run_directory import RunDirectory
from frostline_controller.decisions.next_decision import read_replay
from frostline_controller.decisions.policies.replay import check_calendar
from frostline_controller.local_run.prepared_run import new_run
from frostline_controller.run.controller import Controller
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.freezing_run import decision
from tests.unit.controller.simulation_cases import job, simulated
from tests.unit.controller.synthetic_run import job_values, write_run
from tests.unit.controller.test_service_sizing import Stage

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


@pytest.mark.parametrize(
    ("sections", "refused"),
    [
        ({"freeze": {"interval_steps": 20}}, ""),
        ({"freeze": {"interval_steps": 10}}, "took effect at step 43; here it would at step 23, with freeze.interval_steps 10"),
        ({"freeze": {"interval_steps": None}}, "here it would at step 35, with freeze.interval_steps 16 (null: an epoch)"),
        ({"freeze": {"interval_steps": 20}, "decisions": {"lag_steps": 4}}, "at step 44, with freeze.interval_steps 20"),
        ({"elastic": {"freeze": False}}, ""),
    ],
)
def test_a_replay_with_another_calendar_is_refused_before_it_trains(
    sections: dict[str, dict[str, object]], refused: str, followed: Path, tmp_path: Path
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path / "again", **sections)
        controller = Controller(stage.run, read_replay(followed), tmp_path / "again/checkpoints")
        controller.note_identity()
        outcome = controller.ending.outcome
        assert (outcome.status if outcome is not None else "") == ("failed" if refused else "")
        assert refused in (outcome or pb.RunOutcome()).message
        stage.run.close()

    asyncio.run(story())


def test_a_rollback_and_a_void_decision_stand_at_no_step_of_a_calendar() -> None:
    void, back, freeze = decision(1, 2, "freeze", void=True), decision(2, 0, "rollback", lineage=1), decision(3, 2, "freeze")
    elsewhere = [one.model_copy(update={"effective_step": 99}) for one in (void, back, freeze)]
    check_calendar([*elsewhere[:2], freeze], DecisionCalendar(10, 3, 400))
    with pytest.raises(ValueError, match=r"decision 3 of .* took effect at step 99; here it would at step 33"):
        check_calendar(elsewhere, DecisionCalendar(10, 3, 400))


def test_a_simulated_replay_has_the_calendar_too(followed: Path) -> None:
    with pytest.raises(ValueError, match=r"took effect at step 43; here it would at step 23, with freeze\.interval_steps 10"):
        simulated(job=job(freeze={"interval_steps": 10, "policy": {"name": "replay", "replay_of": str(followed)}}))
