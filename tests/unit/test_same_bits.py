"""`make same-bits`: what counts as kept bits, which jobs are compared, and what is said of those that are not."""

from pathlib import Path

import pytest

from tests.same_bits.__main__ import ROOT, Ended, jobs, judge, reason


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (Ended("aa"), Ended("aa"), "the same bits: aa"),
        (Ended("aa"), Ended("ab"), "DIFFERENT: aa is now ab"),
        (Ended("aa"), Ended(why="job: no such field"), "DIFFERENT: it runs no more: job: no such field"),
        (Ended(why="no data"), Ended(), "not compared: no data"),
    ],
)
def test_a_job_keeps_its_bits_or_is_different_or_was_not_compared(then: Ended, now: Ended, verdict: str) -> None:
    assert judge(then, now) == verdict


def test_every_example_job_is_compared_and_no_cluster_is() -> None:
    found = jobs(ROOT)
    assert "examples/extension/stripes.yaml" in found and "examples/text_classification/glue/cola.yaml" in found
    assert all((ROOT / job).exists() and Path(job).parent.name != "clusters" for job in found)
    every = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.yaml") if "clusters" not in path.parts}
    assert set(found) == {path for path in every if ".cache" not in path}


def test_the_reason_is_the_error_and_not_the_place_of_the_logs() -> None:
    assert reason("frostline: modules-qa: failed after 0 steps: train.json: not found\nlogs: /tmp/run/logs\n") == (
        "modules-qa: failed after 0 steps: train.json: not found"
    )
