"""A round of the controller that fails by a ValueError ends the run: as the user's mistake if its text is meant for the user."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.statistics import UnitProfile
from frostline_controller.run import durable
from frostline_controller.run.durable import FailedDevice, encode_state
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import Stage, first_plan, leading


def no_json() -> None:
    json.loads('{"torn')


def no_text() -> None:
    b"\xff".decode()


def no_record() -> None:
    UnitProfile.model_validate({"forward_seconds": "long"})


def no_policy() -> None:
    raise ValueError("freeze.policy.name is 'magic'; known: manual")


@pytest.mark.parametrize(
    ("fail", "user_mistake", "words"),
    [
        (no_policy, True, "freeze.policy.name is 'magic'"),
        (no_json, False, "JSONDecodeError: "),
        (no_text, False, "UnicodeDecodeError: "),
        (no_record, False, "ValidationError: "),
    ],
)
def test_only_what_speaks_to_the_user_is_the_users_mistake(
    fail: Callable[[], None], user_mistake: bool, words: str, tmp_path: Path
) -> None:
    async def body() -> dict[str, Any]:
        async with leading(tmp_path) as stage:

            async def advance() -> None:
                fail()

            stage.controller.following.advance = advance
            file = tmp_path / "result.json"
            await stage.until(file.exists, "the run ends")
            found: dict[str, Any] = json.loads(file.read_text())
            return found

    result = asyncio.run(body())
    assert (result["status"], result["user_mistake"]) == ("failed", user_mistake)
    assert result["message"].startswith(words)


def freeze_by_command(stage: Stage) -> None:
    asking = asyncio.ensure_future(stage.controller.commands.accept(pb.CommandRequest(kind="freeze", freeze_point=2)))
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())


def sick_device(stage: Stage) -> None:
    """A change that the round makes before it settles the run's outcome."""
    stage.store.amendments.failed_devices = (FailedDevice(node="node-0", uuid="GPU-" + "0f" * 16, failures=2),)


@pytest.mark.parametrize("change", [freeze_by_command, sick_device])
def test_a_state_that_has_grown_too_large_ends_the_run_and_says_so(
    change: Callable[[Stage], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room that is kept for a run's end is there, whichever commit of a round is refused."""

    async def body() -> None:
        async with leading(tmp_path, placement={"workers": 2, "min_workers": 1}) as stage:
            await first_plan(stage, 0, 1)
            await stage.reported("start", "")
            size = len(encode_state(stage.store.state))
            monkeypatch.setattr(durable, "STATE_BYTES_MAX", size - 1)
            change(stage)
            await stage.until(lambda: stage.facts.ended, "the run ends")
            await asyncio.sleep(1.0)
            assert stage.facts.state.state == "failed"
            assert stage.facts.state.message.startswith("the durable state is ")

    asyncio.run(body())
    result = json.loads((tmp_path / "result.json").read_text())
    ends = [event for event in map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines()) if event["kind"] == "end"]
    assert (result["status"], result["user_mistake"], len(ends)) == ("failed", True, 1)
    assert "are allowed (0 decisions, 2 workers); use fewer workers or longer freeze.interval_steps" in result["message"]
    assert ends[0]["reason"] == f"failed: {result['message']}"
