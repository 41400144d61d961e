"""A round of the reconciler: its acts in each phase of the run, on the local backend, one round at a time."""

import asyncio
from pathlib import Path

from frostline_contract.plan import Decision
from frostline_contract.worker_state import WorkerState
from frostline_controller.run.reconciler import ROUND
from frostline_controller.run.run_phase import EVERY, RunPhase
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import Stage


def two_workers(folder: Path) -> Stage:
    return Stage(folder, placement={"workers": 2, "min_workers": 2})


async def started(stage: Stage) -> None:
    """Both workers train in the first generation."""
    await stage.controller.start()
    await stage.reconciler.round()
    assert stage.reconciler.phase == RunPhase.STARTING
    await stage.join(0, 1)
    await stage.reconciler.round()
    plan = stage.facts.current
    assert plan is not None
    for worker_id in plan.placement.workers:
        worker = stage.facts.members.get(worker_id)
        assert worker is not None
        worker.generation, worker.step = plan.generation, 3
    await stage.reconciler.round()
    assert stage.reconciler.phase == RunPhase.RUNNING


async def command(stage: Stage, kind: str) -> None:
    """A person asks; the next round carries it out and answers."""
    asking = asyncio.create_task(stage.controller.commands.accept(pb.CommandRequest(kind=kind)))
    await asyncio.sleep(0)
    await stage.reconciler.round()
    await asking


def test_every_phase_has_its_acts() -> None:
    busy = {phase: [act for act in ROUND if phase in act.phases] for phase in RunPhase}
    common = [act for act in ROUND if act.phases == EVERY]
    assert common[0] is ROUND[0], "a round looks at the cluster first, whatever goes on"
    assert all(len(acts) > len(common) for acts in busy.values()), "a phase in which nothing of its own is done is none"


def test_a_run_goes_through_its_phases(tmp_path: Path) -> None:
    async def story() -> None:
        stage = two_workers(tmp_path)
        await started(stage)
        await command(stage, "suspend")
        assert stage.reconciler.phase == RunPhase.DRAINING
        stage.controller.failures.fail("a member is gone")
        assert stage.reconciler.phase == RunPhase.RECOVERING, "a drain waits for the answer to a failure"
        stage.controller.failures.forget()
        outcome = pb.RunOutcome(status="suspended", message="saved", steps=3)
        stage.controller.ending.note_outcome(outcome)
        await stage.reconciler.round()
        assert (stage.reconciler.phase, stage.facts.state.state) == (RunPhase.ENDED, "suspended")
        await command(stage, "resume")
        assert stage.reconciler.phase == RunPhase.BETWEEN, "who is there is looked at before the next plan"
        stage.run.close()

    asyncio.run(story())


def test_a_run_that_is_suspended_while_it_waits_stays_suspended(tmp_path: Path) -> None:
    """Enough workers come in the very round that ends the run: its former members are gone, and nobody is to replace them."""

    async def story() -> None:
        stage = two_workers(tmp_path)
        await started(stage)
        await command(stage, "suspend")
        stage.controller.ending.note_outcome(pb.RunOutcome(status="suspended", message="saved", steps=3))
        await stage.reconciler.round()
        for worker_id in ("uid-0/1", "uid-1/1"):
            stage.facts.members.end(worker_id, "")
            stage.controller.departures.note(worker_id, "its process ended", WorkerState.ENDED)
        await command(stage, "resume")
        assert stage.reconciler.phase == RunPhase.BETWEEN
        await stage.join(2, 3)
        await command(stage, "suspend")
        assert stage.facts.state.state == "suspended"
        await stage.reconciler.round()
        assert (stage.reconciler.phase, stage.facts.current.generation.counter) == (RunPhase.ENDED, 1)
        stage.run.close()

    asyncio.run(story())


def test_lost_checkpoints_hold_the_run_and_nothing_is_planned(tmp_path: Path) -> None:
    """A run that has decided on an interval, and has neither a record nor a checkpoint, has lost its volume."""

    async def story() -> None:
        stage = two_workers(tmp_path)
        decision = Decision(number=1, interval=1, effective_step=11, freeze_point=0)
        await stage.store.commit(decisions=(decision,), started_at=1.0)
        await stage.controller.start()
        await stage.join(0, 1)
        await stage.reconciler.round()
        assert stage.reconciler.phase == RunPhase.HELD
        assert f"of which {tmp_path} has no record" in stage.facts.message
        assert stage.facts.current is None and stage.store.events.counts["cannot_start"] == 1
        stage.run.close()

    asyncio.run(story())
