"""Units measured before a run, by as many processes at once as workers will compute, in a worker's share of a processor."""

from pathlib import Path
from typing import Any

import pytest

from frostline_contract.cpu_groups import PERIOD_MICROSECONDS, CpuGroups, NoCpuGroups
from frostline_contract.job import Job
from frostline_contract.job.load import parse_job
from frostline_controller.cluster.local import measuring
from frostline_controller.local_run.errors import UserMistake
from tests.e2e.runs import TINY_DIGITS, merged


def job(data: dict[str, Any] | None = None, **placement: Any) -> Job:
    asked = {"training": {"micro_batch_size": "auto", "reduction_leaves": "auto", "batch_size": 16}, "placement": placement}
    return parse_job(merged(TINY_DIGITS, {**asked, "data": data or {}}))


def test_two_workers_measure_the_same_sizes_and_the_link_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.os, "sched_getaffinity", lambda process: {0, 1})
    asked = job(workers=3)
    each = measuring._measured(asked, 2, {})
    sizes, other = ([one.micro_batch_size for one in found.profiles] for found in each)
    assert sizes == other
    assert all(found.link is not None and found.link.reduce_latency_seconds > 0 for found in each)
    seen: list[int] = []

    def measured(of: Job, workers: int, shares: dict[str, str]) -> Any:
        assert (of, shares) == (asked, {})
        seen.append(workers)
        return each

    monkeypatch.setattr(measuring, "_measured", measured)
    found = measuring.measured_here(asked)
    assert seen == [2], "three workers take turns on two processors"
    least = min(profile.units[1].forward_seconds for profile in (one.profiles[0] for one in each))
    assert found.profiles[0].units[1].forward_seconds == least
    assert found.link is not None


def test_a_share_of_a_processor_is_measured_under_its_quota() -> None:
    try:
        ours = CpuGroups.create()
    except NoCpuGroups as reason:
        pytest.skip(str(reason))
    ours.remove()
    found = measuring.measured_here(job(workers=2, worker_cpus=0.25))
    assert {one.quota_period_seconds for one in found.profiles} == {PERIOD_MICROSECONDS / 1e6}
    assert found.link is not None and found.link.latency_seconds > 0
    assert not ours.folder.exists()


def test_a_mistake_that_every_process_meets_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="nowhere") as mistake:
        measuring.settled_here(job({"source": "image-folder", "path": str(tmp_path / "nowhere")}, workers=2))
    assert "\n" not in str(mistake.value)
    with pytest.raises(UserMistake, match=r"placement\.worker_cpus is 100 and 2 workers would need 200"):
        measuring.settled_here(job(workers=2, worker_cpus=100))
