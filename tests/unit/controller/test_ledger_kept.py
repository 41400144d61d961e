"""A leading controller's ledger: filled from heartbeats, kept beyond its end, shown in the status, the metrics and the result."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from frostline_contract.phases import Phase
from frostline_controller.ledger.keeping import ledger_of
from frostline_controller.local_run.status import from_response, status_text
from frostline_controller.report.build import page
from frostline_controller.report.data import read_run
from frostline_controller.run.result import result_record
from frostline_controller.serving.metrics import metrics_text
from frostline_controller.serving.status import status_of
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.synthetic_run import write_run
from tests.unit.controller.test_service_sizing import Stage


class Watched(Stage):
    """A leading controller at times that the test says, in seconds since it began to lead."""

    def __init__(self, folder: Path, **sections: object) -> None:
        super().__init__(folder, **sections)
        self.began, self.passed = self.facts.started, 0.0
        self.facts.clock = lambda: self.began + self.passed

    def send(self, ordinal: int, **seconds: float) -> None:
        """Take a heartbeat's seconds by phase."""
        worker = self.facts.members.get(f"uid-{ordinal}/1")
        assert worker is not None
        worker.spending, worker.spending_at = pb.Spending(seconds=seconds, waiting_seconds={"schedule": 1.0}), self.facts.clock()
        worker.phase = Phase.SCHEDULE

    async def at(self, passed: float) -> None:
        """Do a round's part of the ledger's work."""
        self.passed = passed
        await self.controller.bookkeeping.advance(self.facts.clock())

    def used(self) -> dict[str, float]:
        return {use: round(seconds, 6) for use, seconds in ledger_of(self.facts, self.store).used.items() if seconds}


def test_a_controllers_end_loses_no_second_of_a_worker_that_lives_and_counts_none_twice(tmp_path: Path) -> None:
    async def story() -> None:
        first = Watched(tmp_path, placement={"workers": 2})
        await first.join(0, 1)
        await first.at(4.0)
        assert first.used() == {"reshaping": 8.0}, "they have told nothing yet"
        first.passed = 20.0
        for ordinal in (0, 1):
            first.send(ordinal, start=5.0, schedule=15.0)
        await first.at(20.5)
        written = json.loads((tmp_path / "ledger.json").read_text())["ledger"]
        assert written["worker_seconds"] == pytest.approx(41.0) and first.used()["bubble"] == 2.0
        first.passed = 29.0
        first.send(0, start=5.0, schedule=24.0)  # the controller is killed before it writes again
        first.run.close()

        second = Watched(tmp_path, placement={"workers": 2})
        assert sum(second.used().values()) == pytest.approx(41.0)
        await second.join(0)
        await second.at(1.0)
        assert sum(second.used().values()) == pytest.approx(41.0), "worker 0 is there and has not told anything again"
        second.send(0, start=5.0, schedule=30.0, exchange=1.0)
        second.send(0, start=5.0, schedule=30.0, exchange=1.0)
        assert sum(second.used().values()) == pytest.approx(36.0 + 20.5)
        await second.at(1.0 + second.facts.members.dead_after_seconds + 1.0)
        assert second.facts.books.open() == ["uid-0/1"], "worker 1 never came back: its time ends where it was last seen"
        assert sum(second.used().values()) == pytest.approx(36.0 + 20.5 + second.passed - 1.0)
        second.facts.members.remove("uid-0/1", "silent")
        await second.at(second.passed + 10.0)
        second.passed += 100.0
        since_word, of_the_other = second.facts.members.dead_after_seconds + 11.0, 0.5
        assert second.used()["lost"] == pytest.approx(since_word + of_the_other) and second.facts.books.open() == []
        second.run.close()

    asyncio.run(story())


def test_the_status_the_metrics_and_the_result_tell_one_ledger_and_its_cost(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Watched(tmp_path, placement={"workers": 2}, cluster={"price_per_worker_hour": 36.0})
        await stage.join(0)
        stage.passed = 100.0
        stage.send(0, start=10.0, schedule=60.0, exchange=10.0, load=20.0)
        answer = from_response(status_of(stage.facts, stage.store))
        assert answer["ledger"]["used"] == dict.fromkeys(answer["ledger"]["used"], 0.0) | {
            "reshaping": 10.0, "computing": 59.0, "bubble": 1.0, "exchange": 10.0, "data": 20.0}  # fmt: skip
        assert answer["ledger"]["cost"]["total"] == 1.0
        assert "ledger: 100.0 worker-seconds at a cost of 1.00: computing 59.0 %, data 20.0 %" in status_text(answer)
        text = metrics_text(stage.facts, stage.store).decode()
        assert 'frostline_worker_seconds{use="exchange"} 10.0' in text and "frostline_cost 1.0" in text
        assert 'frostline_saved_worker_seconds_estimated{by="pods"} 0.0' in text
        await stage.controller.bookkeeping.close(stage.facts.clock())
        stage.passed += 0.1
        stage.send(0, start=10.0, schedule=60.1, exchange=10.0, load=20.0)  # the worker exits, and reports that
        flags = {"user_mistake": False, "crash_loop": False}
        record = result_record(stage.facts, stage.store, pb.RunOutcome(), stage.facts.state.state, **flags)
        assert record["ledger"] == answer["ledger"]
        stage.passed = 500.0
        assert sum(stage.used().values()) == 100.0, "the run has ended"
        stage.run.close()

    asyncio.run(story())


def test_a_clock_that_was_set_back_makes_no_negative_time(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Watched(tmp_path)
        await stage.store.commit(started_at=time.time() + 3600.0)
        record = result_record(
            stage.facts, stage.store, pb.RunOutcome(), stage.facts.state.state, user_mistake=False, crash_loop=False
        )
        assert record["wall_seconds"] == 0.0
        stage.run.close()

    asyncio.run(story())


def test_a_ledger_that_cannot_be_read_ends_no_controller(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text('{"version": 1, "books": {"closed": {"a wrong": 1}}}')
    stage = Watched(tmp_path)
    assert stage.used() == {}
    stage.run.close()


def test_the_report_has_a_table_and_a_picture_of_the_ledger(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert "Where worker-time went" not in page(read_run(folder)), "a run of an older version"
    result = json.loads((folder / "result.json").read_text())
    used = {"computing": 5400.0, "bubble": 1700.0, "lost": 100.0}
    result["ledger"] = {"used": used, "saved_estimates": {"freezing": 900.0, "cache": -3.0}, "price_per_worker_hour": 2.0}
    (folder / "result.json").write_text(json.dumps(result))
    text = page(read_run(folder))
    assert "chart-ledger" in text and "2.00 worker-hours at a cost of 4.00" in text
    assert "lost to failures and rollbacks" in text and "measured backward seconds" in text
