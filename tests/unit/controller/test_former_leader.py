"""A controller that lost its ownership of the run, and has not noticed: it replaces no file of the run and no pod."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from frostline_contract.job import Job
from frostline_contract.job.automatic import Settled
from frostline_controller.cluster.backend import PodInfo
from frostline_controller.reshape.live_fields import LiveFields
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.errors import NotLeading
from tests.unit.controller.test_service_sizing import Stage, first_plan, leading

AUTOMATIC = {"steps": 64, "batch_size": 32, "micro_batch_size": "auto", "reduction_leaves": "auto"}


class Changed:
    """A release with a changed job: to accept it writes job.yaml."""

    def __init__(self, stage: Stage) -> None:
        self._job = stage.facts.job

    def changed(self) -> bool:
        return True

    def accept(self, run_dir: Path) -> tuple[Job, list[str]]:
        (run_dir / "job.yaml").write_text("changed")
        return self._job, []


async def settle(stage: Stage) -> None:
    await stage.store.commit(settled=Settled(micro_batch_size=4, reduction_leaves=8))
    await stage.controller.settling.advance()


async def follow(stage: Stage) -> None:
    await LiveFields(stage.facts, stage.store, stage.run.outbox, stage.controller.adapting, Changed(stage)).advance()


async def end(stage: Stage) -> None:
    stage.controller.ending.note_outcome(pb.RunOutcome(status="completed", steps=64))
    await stage.controller.ending.settle(stage.facts.clock())


async def profile(stage: Stage) -> None:
    await stage.controller.profiling.advance()


async def keep_books(stage: Stage) -> None:
    await stage.controller.bookkeeping.write(stage.facts.clock())


FILES = {"job.yaml": follow, "result.json": end, "profile.json": profile, "ledger.json": keep_books}


def superseded(stage: Stage) -> None:
    """Let another controller lead from now on."""

    def may_write() -> None:
        raise NotLeading("another one leads")

    stage.store.may_write = may_write


@pytest.mark.parametrize("name", FILES)
def test_a_former_leader_replaces_no_file_of_the_run(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
        stage = Stage(tmp_path)
        await stage.join(0, 1)
        (tmp_path / name).write_text("the successor's")
        superseded(stage)
        with pytest.raises(NotLeading):
            await FILES[name](stage)
        assert (tmp_path / name).read_text() == "the successor's"
        stage.run.close()

    asyncio.run(story())


def test_a_former_leader_settles_no_job(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, training=AUTOMATIC)
        superseded(stage)
        with pytest.raises(NotLeading):
            await settle(stage)
        assert not (tmp_path / "job.yaml").exists()
        stage.run.close()

    asyncio.run(story())


@pytest.mark.parametrize("write", ["scale", "delete"])
def test_a_former_leader_scales_and_deletes_no_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    """Its number would be a user's request to the successor."""

    async def story() -> None:
        stage, done = Stage(tmp_path), list[str]()
        monkeypatch.setattr(stage.backend, "scale", lambda replicas, test: done.append("scale"))
        monkeypatch.setattr(stage.backend, "delete_pod", lambda name, grace: done.append("delete"))
        stage.facts.cluster.pods.append(
            PodInfo(name="trainer-0", uid="uid-0", node="n", phase="Running", started_at=0.0, ready=True)
        )
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "scale": lambda: stage.run.pods.scale(1, 2), "delete": lambda: stage.run.pods.delete("uid-0"),
        }  # fmt: skip
        superseded(stage)
        with pytest.raises(NotLeading):
            await writes[write]()
        assert done == []
        stage.run.close()

    asyncio.run(story())
