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
