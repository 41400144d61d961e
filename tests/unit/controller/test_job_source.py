"""The job of a release that offers an invalid one, without an API server (tests/cluster has the rest)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import yaml

from frostline_contract.job import JobError
from frostline_controller import on_cluster
from frostline_controller.cluster.kubernetes.api import ApiError
from frostline_controller.cluster.kubernetes.job_source import JOB_KEY, JobSource
from frostline_controller.cluster.kubernetes.lease import LeaderLease, LeaseTimes
from tests.integration.scripted_worker import job_values
from tests.unit.controller.test_service_sizing import Stage


class OneConfigMap:
    """The part of an API that the job needs: one ConfigMap, which nothing watches."""

    def __init__(self) -> None:
        self.offered: dict[str, Any] = {}

    def get(self, path: str, **query: str) -> dict[str, Any]:
        if query:
            raise ApiError(503, "no list here")
        return {"data": {JOB_KEY: yaml.safe_dump(self.offered)}}

    def within(self, seconds: float) -> "OneConfigMap":
        """Nobody waits for it."""
        return self

    def close(self) -> None:
        """There is no connection."""


@pytest.fixture
def release() -> Iterator[tuple[OneConfigMap, JobSource]]:
    api = OneConfigMap()
    jobs = JobSource(api, "default", "run-job", "run")  # type: ignore[arg-type]
    yield api, jobs
    jobs.close()


def test_a_controller_starts_though_the_release_offers_an_invalid_job(
    release: tuple[OneConfigMap, JobSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Lease has the times of the job that the run follows, and its first act as the leader refuses the other one."""
    api, jobs = release
    api.offered = job_values(kubernetes={"lease": {"duration_seconds": 60.0, "renew_seconds": 40.0, "retry_seconds": 8.0}})
    followed, _ = jobs.accept(tmp_path)
    api.offered = job_values(training={"steps": -1})
    waited_for: list[LeaderLease] = []

    async def acquired(lease: LeaderLease, stop: asyncio.Event) -> bool:
        waited_for.append(lease)
        return False

    monkeypatch.setattr(on_cluster, "acquired", acquired)
    monkeypatch.setattr(on_cluster, "serve_health", AsyncMock())
    monkeypatch.setattr(on_cluster, "WebServer", AsyncMock)
    monkeypatch.setattr(on_cluster.Api, "in_cluster", lambda: api)
    settings = on_cluster.Settings("default", "run", "run-controller-0", "uid", tmp_path, "run", "", "127.0.0.1")
    assert asyncio.run(on_cluster.serve(settings)) == 0
    assert [lease._times for lease in waited_for] == [LeaseTimes(60.0, 40.0, 8.0)]
    job, said = jobs.accept(tmp_path)
    assert job == followed and said[0].startswith("refused: the release's new job: ") and "steps" in said[0]


def test_a_first_job_that_is_invalid_ends_the_start(release: tuple[OneConfigMap, JobSource], tmp_path: Path) -> None:
    api, jobs = release
    api.offered = job_values(training={"steps": -1})
    with pytest.raises(JobError, match="steps"):
        jobs.before_leading(tmp_path)


def write_checkpoint(root: Path) -> None:
    (manifest := root / "0" / "1.1" / "8" / "manifest.json").parent.mkdir(parents=True)
    manifest.write_text('{"lineage": 0, "step": 8}')


def test_a_new_release_does_not_follow_the_job_of_an_earlier_one_of_its_name(
    release: tuple[OneConfigMap, JobSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume of the first one was kept: its job was followed, and its checkpoints were gone on from."""
    monkeypatch.setattr(on_cluster, "FILE_SECONDS", 0.01)
    api, jobs = release
    api.offered = job_values(seed=1)
    jobs.accept(tmp_path)

    async def story() -> list[bool]:
        stage, stop, root = Stage(tmp_path), asyncio.Event(), tmp_path / "checkpoints"
        answers = [await on_cluster.owns_folder(stage.run, jobs, root, stop)]
        write_checkpoint(root)
        answers.append(await on_cluster.owns_folder(stage.run, jobs, root, stop))
        api.offered = job_values(seed=7)
        waiting = asyncio.create_task(on_cluster.owns_folder(stage.run, jobs, root, stop))
        said = await stage.reported("cannot_start", f"{tmp_path} holds an earlier release's run of another job (seed 1, not 7)")
        assert "install under another name" in said
        await asyncio.sleep(0.1)
        assert not waiting.done()
        api.offered = job_values(seed=1)
        answers.append(await asyncio.wait_for(waiting, 30.0))
        assert [line["kind"] for line in stage.store.events.all()] == ["cannot_start"]
        api.offered = job_values(seed=7)
        await stage.store.commit(started_at=1.0)
        answers.append(await on_cluster.owns_folder(stage.run, jobs, root, stop))
        stage.run.close()
        return answers

    assert asyncio.run(story()) == [True, True, False, True]


def test_a_new_release_whose_name_is_free_again_starts_anew(release: tuple[OneConfigMap, JobSource], tmp_path: Path) -> None:
    api, jobs = release
    api.offered = job_values(seed=1)
    jobs.accept(tmp_path)
    api.offered = job_values(seed=7)
    assert jobs.unlike(tmp_path) == ["seed 1, not 7"]
    (tmp_path / JOB_KEY).unlink()
    assert jobs.unlike(tmp_path) == []
