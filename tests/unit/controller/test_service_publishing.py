"""The progress annotation: written at its own pace, and soon after a change of the fields that people look for first."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from frostline_contract.annotations import PROGRESS
from frostline_controller.serving.progress import CHANGED_SECONDS, EVERY_SECONDS, ProgressWriter
from tests.unit.controller.test_service_sizing import Stage


class Reader:
    """A run that waits, its publishing, and the annotation that is written at a time that the test states."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder)
        self.publishing = ProgressWriter(self.stage.facts, self.stage.store, self.stage.backend)

    def at(self, seconds: float) -> dict[str, object]:
        asyncio.run(self.publishing.advance(seconds))
        return json.loads(self.stage.backend.read().annotations.get(PROGRESS, "{}"))

    def blind(self) -> None:
        """Empty the annotation, so that only a new write is seen."""
        self.stage.backend.patch_annotations({PROGRESS: "{}"}, {})


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.stage.run.close()


def test_nothing_new_is_written_every_ten_seconds(reader: Reader) -> None:
    assert reader.at(0.0)["state"] == "waiting"
    reader.blind()
    assert reader.at(EVERY_SECONDS - 0.1) == {}
    assert reader.at(EVERY_SECONDS)["state"] == "waiting"


def test_a_change_is_written_soon_and_no_faster(reader: Reader) -> None:
    reader.at(0.0)
    reader.stage.facts.message = "waiting for workers: 3 of 4 are there"
    reader.blind()
    assert reader.at(CHANGED_SECONDS - 0.1) == {}
    assert reader.at(CHANGED_SECONDS)["message"] == "waiting for workers: 3 of 4 are there"
    reader.blind()
    assert reader.at(2 * CHANGED_SECONDS) == {}


def test_what_cannot_be_written_is_tried_again_in_its_own_time(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError("no API server")

    with monkeypatch.context() as away:
        away.setattr(reader.stage.backend, "patch_annotations", refuse)
        with pytest.raises(OSError, match="no API server"):
            reader.at(0.0)
    assert reader.at(CHANGED_SECONDS) == {}
    assert reader.at(EVERY_SECONDS)["state"] == "waiting"
