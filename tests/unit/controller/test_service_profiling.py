"""Workers' measurements: sent to joiners; and profile.json, whole at any moment and read by `frostline plan --profile`."""

import asyncio
import json
from pathlib import Path

import pytest

from frostline_contract.job import dump_job, parse_job
from frostline_contract.statistics import LinkProfile, WorkerProfile
from frostline_contract.worker_state import WorkerState
from frostline_controller.cli.main import main
from frostline_controller.planner.kept_profile import KeptProfile
from tests.integration.scripted_worker import NUM_UNITS, job_values
from tests.unit.controller.test_service_sizing import UNIT, first_plan, leading


def test_a_joiner_is_handed_the_profile_of_each_kind_of_device_that_the_run_has(tmp_path: Path) -> None:
    def slower(times: int, device: str) -> WorkerProfile:
        unit = UNIT.model_copy(update={"forward_seconds": times * UNIT.forward_seconds})
        return WorkerProfile(micro_batch_size=4, units=(unit,) * NUM_UNITS, device=device, memory_bytes=times)

    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            handed_out = stage.controller.handed_out
            await stage.join(0)
            assert handed_out.profiles() == [], "those that the first plan is made for measure"
            await first_plan(stage, 1, 2, 3)
            measured = [slower(3, "cpu"), slower(1, "cpu"), slower(2, "cpu"), slower(5, "gpu")]
            for worker, profile in zip(stage.facts.members, measured, strict=True):
                worker.profile = KeptProfile.of(profile)
            assert handed_out.profiles() == [measured[2], measured[3]], "the median of the kind"
            await stage.join(4)
            assert handed_out.profiles() == [measured[2], measured[3]], "the run's, settled once"

    asyncio.run(story())


def test_measurements_are_written_with_the_first_plan_and_links_when_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"

    async def story() -> None:
        async with leading(tmp_path) as stage:
            assert not path.exists()
            await first_plan(stage, 0, 1)
            await stage.until(path.exists, "the profile")
            written = json.loads(path.read_text())
            assert (written["version"], written["micro_batch_size"], written["link"]) == (1, 4, None)
            assert written["units"] == [UNIT.model_dump(mode="json")] * NUM_UNITS
            for worker, latency in zip(stage.facts.members, (0.01, 0.03), strict=True):
                worker.link = LinkProfile(latency_seconds=latency)
            link = await stage.until(lambda: json.loads(path.read_text())["link"], "the links")
            assert link["latency_seconds"] == pytest.approx(0.02)
            stage.controller.departures.note("uid-1/1", "gone", WorkerState.GONE)
            await stage.until(lambda: json.loads(path.read_text())["link"]["latency_seconds"] == 0.01, "the link of the one left")

    asyncio.run(story())
    job = tmp_path / "job.yaml"
    job.write_text(dump_job(parse_job(job_values())))
    command = ["plan", "-f", str(job), "--json", "--profile", str(path), "--devices", "2", "--set", "model.config.hidden_size=64"]
    assert main(command) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["assumptions"]["unit_profile"] == "measured"
    slow = reported["plans"][0]["cost"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"link": None}))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["cost"] != slow, "the measured links count"
