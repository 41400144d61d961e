"""A round of the controller that fails by a ValueError ends the run: as the user's mistake if its text is meant for the user."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.statistics import UnitProfile
from tests.unit.controller.test_service_sizing import leading


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
