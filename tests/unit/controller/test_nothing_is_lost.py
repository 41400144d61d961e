"""The controller's files and memory when its callers are cancelled, its writes fail, or its history grows long."""

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.plan import Decision
from frostline_controller.decisions.kept import pack_decisions, unpack_decisions
from frostline_controller.decisions.next_decision import decision_line
from frostline_controller.run.durable import DurableState, decode_state, encode_state
from frostline_controller.run.events import EventLog, event_line
from frostline_controller.run.journal import Journal, all_written
from frostline_controller.run.plan_log import PlanLog, plan_end_line
from frostline_controller.run.records import RecordLog, StatisticsLog
from frostline_rpc.errors import NotLeading
from tests.unit.controller.test_service_state import CALENDAR, decision, interval, record


def cancelled_after(turns: int, work: Callable[[], Coroutine[Any, Any, Any]], then: Callable[[], Awaitable[None]]) -> bool:
    """Cancel `work` after so many turns of the event loop, then wait for `then`. Return whether the cancel hit."""

    async def run() -> bool:
        task = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await then()
        await all_written()
        return was_cancelled

    return asyncio.run(run())


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return fails; after fails(n) the next n writes of any journal fail."""
    left = [0]
    write = Journal._write

    def planted(journal: Journal, data: bytes) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write(journal, data)

    monkeypatch.setattr(Journal, "_write", planted)
    return lambda times: left.__setitem__(0, times)


@pytest.mark.parametrize("fails", [0, 1], ids=["written", "full disk"])
@pytest.mark.parametrize("turns", range(1, 9))
def test_a_cancelled_sender_of_records_leaves_nothing_that_counts_as_held(
    tmp_path: Path, failing: Callable[[int], None], turns: int, fails: int
) -> None:
    log = RecordLog(tmp_path / "metrics.jsonl")
    failing(fails)

    async def send_again() -> None:
        await log.take([record(3)], (), exact=True)
        assert log.durable_step(0, 0) in (0, 3)
        await log.take([record(1), record(2), record(3)], (), exact=True)

    cancelled_after(turns, lambda: log.take([record(1), record(2)], (), exact=True), send_again)
    log.close()
    assert log.durable_step(0, 0) == 3
    assert sorted(line["step"] for line in lines(tmp_path / "metrics.jsonl")) == [1, 2, 3]


@pytest.mark.parametrize("turns", range(6))
def test_a_cancelled_sender_of_statistics_or_events_writes_them_once(tmp_path: Path, turns: int) -> None:
    log, events = StatisticsLog(tmp_path / "statistics.jsonl"), EventLog(tmp_path / "events.jsonl")
    line = event_line("checkpoint", 0.0, step=8, lineage=0)

    async def send() -> None:
        await log.take([interval(1)])
        await events.add_once(line)

    cancelled_after(turns, send, send)
    log.close()
    events.close()
    assert [one["number"] for one in lines(tmp_path / "statistics.jsonl")] == [1]
    assert [one["step"] for one in lines(tmp_path / "events.jsonl")] == [8]


def test_an_event_of_the_controllers_own_is_written_later_where_it_cannot_be_now(
    tmp_path: Path, failing: Callable[[int], None]
) -> None:
    log = EventLog(tmp_path / "events.jsonl")

    async def announce() -> None:
        failing(2)
        await log.keep(event_line("freeze", 0.0, step=11, lineage=0))
        await log.keep(event_line("end", 0.0, step=12, lineage=0))
        assert lines(tmp_path / "events.jsonl") == [] and [line["kind"] for line in log.all()] == ["freeze", "end"]
        assert log.holds("freeze", 11, 0)
        await log.flush()
        await log.flush()

    asyncio.run(announce())
    log.close()
    assert [line["kind"] for line in lines(tmp_path / "events.jsonl")] == ["freeze", "end"]


def test_an_event_is_read_once_and_whole_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:8]))  # a line takes many writes
    log = EventLog(tmp_path / "events.jsonl")

    async def run() -> set[int]:
        found, keeping = set[int](), asyncio.create_task(log.keep(event_line("start", 0.0, reason="first plan " * 50)))
        while not keeping.done():
            await asyncio.sleep(0)
            found.add(len(log.all()))
        return {*found, len(log.all())}

    for _ in range(20):
        before = log.counts["start"]
        assert asyncio.run(run()) <= {before, before + 1}


def test_an_event_that_could_not_be_written_is_not_known(tmp_path: Path, failing: Callable[[int], None]) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    line = event_line("checkpoint", 0.0, step=8, lineage=0)
    failing(1)
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(log.add_once(line))
    assert not log.holds("checkpoint", 8, 0)
    assert [asyncio.run(log.add_once(line)), asyncio.run(log.add_once(line))] == [True, False]
    log.close()


def test_lines_of_the_history_are_written_once_and_a_decisions_newer_word_too(tmp_path: Path) -> None:
    freeze = decision(2, 3, "freeze")
    end = plan_end_line("1.1", 9)
    log = PlanLog(tmp_path / "plans.jsonl")
    for written in ([decision_line(freeze), end], [decision_line(freeze), end], [{**end, "last_step": 11}]):
        asyncio.run(log.append(written))
    log.close()
    again = PlanLog(tmp_path / "plans.jsonl")
    asyncio.run(again.append([decision_line(freeze.model_copy(update={"void": True}))]))
    again.close()
    found = lines(tmp_path / "plans.jsonl")
    assert [(line["kind"], line.get("void", line.get("last_step"))) for line in found] == [
        ("decision", False), ("plan_end", 9), ("plan_end", 11), ("decision", True),
    ]  # fmt: skip


@pytest.mark.parametrize("refused", ["write", "fsync"])
@pytest.mark.parametrize("times", [1, 2])
def test_half_a_line_that_could_not_be_cut_at_once_is_cut_before_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, refused: str
) -> None:
    """The disk refuses a line, and then to cut it: the line was not acknowledged, and no later line may follow what is left."""
    path, left = tmp_path / "events.jsonl", {refused: 1, "ftruncate": times}

    def failing(name: str) -> None:
        act = getattr(os, name)

        def planted(file: int, *arguments: Any) -> Any:
            if left.get(name) and os.readlink(f"/proc/self/fd/{file}") == str(path):
                left[name] -= 1
                if name == "write":
                    act(file, arguments[0][:5])
                raise OSError(errno.EIO, "Input/output error")
            return act(file, *arguments)

        monkeypatch.setattr(os, name, planted)

    journal = Journal(path)
    asyncio.run(journal.append([{"line": 1}]))
    for name in ("write", "fsync", "ftruncate"):
        failing(name)
    for _ in range(times):
        with pytest.raises(OSError, match="Input/output error") as refusal:
            asyncio.run(journal.append([{"line": "unsaid"}]))
        assert refusal.value.filename == str(path), "whoever reads of it knows which file it was"
    asyncio.run(journal.append([{"line": 2}]))
    asyncio.run(journal.append([{"line": 3}]))
    assert list(journal.lines()) == [{"line": 1}, {"line": 2}, {"line": 3}]
    journal.close()
    assert left == {refused: 0, "ftruncate": 0}


def test_who_leads_no_more_appends_to_no_file_of_the_run(tmp_path: Path) -> None:
    leads = [True]

    def may_write() -> None:
        if not leads[0]:
            raise NotLeading("another one leads")

    log = RecordLog(tmp_path / "metrics.jsonl", may_write)
    asyncio.run(log.take([record(1)], (), exact=True))
    leads[0] = False
    with pytest.raises(NotLeading):
        asyncio.run(log.take([record(2)], (), exact=True))
    assert log.durable_step(0, 0) == 1
    log.close()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1]


DECISIONS = st.lists(
    st.tuples(st.sampled_from(["keep", "keep", "keep", "freeze", "rollback"]), st.booleans(), st.integers(0, 2)), max_size=40
)


@given(DECISIONS)
def test_packed_decisions_come_back_with_everything_but_old_words(made: list[tuple[str, bool, int]]) -> None:
    decisions, lineage = [], 0
    for number, (kind, void, point) in enumerate(made, start=1):
        opened = lineage + 1 if kind == "rollback" else lineage
        fields = {"lineage": opened, "decided_in": lineage, "void": void, "reason": f"because {number}", "policy": "p"}
        decisions.append(decision(number, point, kind, **fields))
        lineage = opened
    found = unpack_decisions(json.loads(json.dumps(pack_decisions(decisions))))
    assert [one.model_copy(update={"reason": ""}) for one in found] == [
        one.model_copy(update={"reason": ""}) for one in decisions
    ]
    for one, was in zip(found, decisions, strict=True):
        assert one.reason in ("", was.reason)
        if was.kind != "keep" or was.void or was in decisions[-8:]:
            assert one.reason == was.reason


def test_the_durable_state_does_not_grow_with_the_run() -> None:
    def kept(count: int) -> DurableState:
        reason = "; ".join(f"rail {name} allows it" for name in "abcdef")
        freeze = Decision(number=1, interval=1, effective_step=CALENDAR.effective_step(1), freeze_point=2, kind="freeze")
        return DurableState(decisions=(freeze, *(decision(number, 2, reason=f"{reason} {number}") for number in range(2, count))))

    assert len(encode_state(kept(20_000))) < len(encode_state(kept(100))) + 100
    assert len(decode_state(encode_state(kept(20_000))).decisions) == 19_999
