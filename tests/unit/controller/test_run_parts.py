"""The parts of a run: when facts become durable, when they are sent, and the state of a plan that is being prepared."""

import asyncio
from pathlib import Path

import pytest

from frostline_contract.plan import Decision
from frostline_controller.members.membership import Membership
from frostline_controller.recovery.budget import RetryBudget
from frostline_controller.reshape.preparation import ENTERED_WAIT_SECONDS, Preparation, open_window
from frostline_controller.run.durable import DurableStore, FailedDevice
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.failures import plan
from tests.unit.controller.test_recovery_plans import store as worker_named
from tests.unit.controller.test_service_sizing import Stage

BASE, NEXT = plan(1, "AB", 2), plan(2, "AB", 1).model_copy(update={"switch_from": 10, "switch_until": 20})


def successor(stage: Stage) -> DurableStore:
    """Return the state that a successor would read now."""
    return DurableStore(stage.backend)


def test_an_amendment_holds_at_once_and_is_durable_with_the_next_commit(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, placement={"workers": 2})
        amendments = stage.store.amendments
        amendments.cache_off, amendments.memory_limit_bytes = "a cached value was wrong", 1000
        amendments.failed_devices = (FailedDevice(node="n", uuid="GPU-1", failures=2),)
        amendments.retries = RetryBudget().charged(3, 0, of_its_own=True, error="boom")
        assert (stage.facts.cache_off, stage.facts.memory_limit_bytes) == ("a cached value was wrong", 1000)
        assert [one.uuid for one in stage.facts.quarantined] == ["GPU-1"]
        assert stage.facts.state.cache_off == ""
        await stage.store.commit(requested_workers=1)
        state, _ = successor(stage).take_over()
        assert (state.requested_workers, state.cache_off, state.memory_limit_bytes) == (1, "a cached value was wrong", 1000)
        assert (state.identity, state.retries, len(state.failed_devices)) == (stage.facts.identity, amendments.retries, 1)
        stage.run.close()

    asyncio.run(story())


def test_what_a_call_notes_is_written_by_the_reconciler_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, placement={"workers": 2})
        stage.facts.wake.clear()
        stage.run.outbox.note(pb.RunEvent(kind="command", step=1, reason="first"))
        stage.run.outbox.note(pb.RunEvent(kind="command", step=2, reason="second"))
        assert stage.facts.wake.is_set() and stage.store.events.all() == []
        add_once, fails = stage.store.events.add_once, iter([False, True])

        async def full(line: dict[str, object]) -> bool:
            if next(fails, False):
                raise OSError("No space left on device")
            return await add_once(line)

        monkeypatch.setattr(stage.store.events, "add_once", full)
        with pytest.raises(OSError, match="No space left"):
            await stage.run.outbox.send_noted()
        await stage.run.outbox.send_noted()
        await stage.run.outbox.send_noted()
        assert [line["reason"] for line in stage.store.events.all()] == ["first", "second"]
        stage.run.close()

    asyncio.run(story())


def test_a_window_ends_before_the_vote_that_adopts_the_next_decision(tmp_path: Path) -> None:
    async def story() -> None:
        training = {"steps": 40, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 8}
        stage = Stage(tmp_path, training=training, freeze={"interval_steps": 8, "policy": {"name": "manual"}})
        calendar = stage.facts.calendar
        assert calendar is not None
        first = calendar.effective_step(1)
        assert open_window(stage.facts) == (0, 0, 1, first - 2)
        assert open_window(stage.facts, not_before=first)[2:] == (first, calendar.effective_step(2) - 2)
        decision = Decision(number=1, interval=1, effective_step=first, freeze_point=2, kind="freeze")
        await stage.store.commit(decisions=(decision,))
        assert open_window(stage.facts) == (2, 1, first, calendar.effective_step(2) - 2)
        assert open_window(stage.facts, not_before=39).until == 39, "no vote of the last step switches"
        stage.run.close()

    asyncio.run(story())


def members(step: int, of: int) -> Membership:
    """Both workers, at a step of the base (1) or of the next plan (2)."""
    known = Membership(10.0, 1.0)
    for name in "AB":
        worker = worker_named(name)
        worker.generation, worker.step = (BASE if of == 1 else NEXT).generation, step
        known.add(worker)
    return known


def test_the_step_of_a_switch_is_the_members_word_or_their_records_or_after_a_while_their_heartbeats() -> None:
    preparation = Preparation(since=0.0)
    assert preparation.switched_at(NEXT, members(15, of=1), None, 100.0) is None
    assert preparation.switched_at(NEXT, members(15, of=2), None, 100.0) is None, "its exact word may be on its way"
    assert preparation.switched_at(NEXT, members(15, of=2), None, 100.0 + ENTERED_WAIT_SECONDS) == 15
    assert preparation.switched_at(NEXT, members(15, of=1), 15, 100.0) == 14
    preparation.take("A", pb.ReadyRequest(entered=True, ready=True, step=14, seconds=0.2))
    assert preparation.switched_at(NEXT, members(15, of=2), None, 100.0) == 14


def test_a_plan_has_expired_where_no_vote_can_switch_to_it_any_more() -> None:
    preparation = Preparation(since=0.0)
    assert not preparation.has_expired(NEXT, BASE, members(20, of=1)), "the vote of its last step may switch"
    assert preparation.has_expired(NEXT, BASE, members(21, of=1))
    preparation.announced, preparation.withdrawn = True, "late"
    assert not preparation.has_expired(NEXT, BASE, members(12, of=1)), "a vote that is under way may still switch"
    preparation.take("A", pb.ReadyRequest(ready=False, step=11))
    assert not preparation.has_expired(NEXT, BASE, members(12, of=1)), "so may the one that counted it as ready"
    assert preparation.has_expired(NEXT, BASE, members(13, of=1))
    assert Preparation(since=0.0, withdrawn="late").has_expired(NEXT, BASE, members(12, of=1)), "nobody was allowed to vote"
