"""Zero-bubble schedules through the whole system: a V that freezes, loses a worker and is reshaped into others ends with the digest
of one worker that nothing befell (docs/adr/0019-zero-bubble.md)."""

from pathlib import Path

from tests.e2e.runs import Ended, Workshop

CHANGES = {
    "placement": {"schedule": "zb_v", "initial_pp_degree": 3},
    "reshapes": [
        {"step": 21, "pp_degree": 2, "dp_degree": 1, "schedule": "v_half", "virtual_stages": 2},
        {"step": 35, "pp_degree": 3, "dp_degree": 1, "schedule": "zb_h2"},
    ],
    "faults": [
        {"kind": "kill_worker", "step": 6, "worker": 1, "phase": "schedule"},
        {"kind": "kill_worker", "step": 41, "worker": 2, "phase": "schedule"},
    ],
}
"""Freeze points as of TINY_DIGITS: 2 from step 11 on, 4 from step 27 on. Three ranks of a V need six units that learn: after the
first freeze the planner takes zb_h1, or fewer ranks."""


def test_zero_bubble_runs_that_freeze_and_lose_workers_end_with_the_digest_of_one_worker(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    ended = workshop.run(tmp_path / "run", CHANGES, "--workers", "3")
    assert ended.code == 0 and len(ended.events("fault")) == 2, ended.story()
    placed = [plan["placement"] for plan in ended.plans]
    ways = {(one["schedule"], one["degrees"]["pp"]) for one in placed}
    assert {("zb_v", 3), ("v_half", 2), ("zb_h2", 3)} <= ways, ways
    assert (ended.digest, ended.numerics) == (one_worker.digest, one_worker.numerics)
