"""Zero-bubble schedules through the whole system: a V that freezes, loses a worker and is reshaped into others ends with the
digest of one undisturbed worker (docs/adr/0019-zero-bubble.md)."""

from collections import defaultdict
from pathlib import Path

import pytest

from frostline_contract.schedules import schedule_named
from tests.e2e.runs import Ended, Workshop, slowed

CHANGES = {
    "placement": {"schedule": "zb_v", "pp_degree": 3},
    "reshapes": [
        {"step": 18, "pp_degree": 2, "dp_degree": 1, "schedule": "v_half", "virtual_stages": 2},
        {"step": 37, "pp_degree": 3, "dp_degree": 1, "schedule": "zb_h2"},
    ],
    "faults": [
        {"kind": "kill_worker", "step": 6, "worker": 1, "phase": "schedule"},
        {"kind": "kill_worker", "step": 50, "worker": 2, "phase": "schedule"},
        # Slow steps after the first kill, in which its worker comes back; and where the shape is prepared that needs it.
        *slowed(7, 0.3, workers=3),
        *slowed(37, 0.15, workers=3),
    ],
}
"""Freeze points as of TINY_DIGITS: 2 from step 11 on, 4 from step 27 on. Three ranks of a V need six units that learn: after the
first freeze the planner takes zb_h1."""


@pytest.mark.wide
def test_zero_bubble_runs_that_freeze_and_lose_workers_end_with_the_digest_of_one_worker(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    ended = workshop.run(tmp_path / "run", CHANGES, "--workers", "3", report=True)
    kills = [event for event in ended.events("fault") if "kill_worker" in event["reason"]]
    assert ended.code == 0 and len(kills) == 2, ended.story()
    placed = [plan["placement"] for plan in ended.plans]
    ways = {(one["schedule"], one["degrees"]["pp"]) for one in placed}
    assert {("zb_v", 3), ("v_half", 2), ("zb_h2", 3)} <= ways, ways
    assert (ended.digest, ended.numerics) == (one_worker.digest, one_worker.numerics)
    check_traces(ended)


def check_traces(ended: Ended) -> None:
    """Assert that traced steps have, on every rank, the computations of the plan's schedule in order, one after another, and
    that the report draws them."""
    plans = {f"{one['generation']['incarnation']}.{one['generation']['counter']}": one["placement"] for one in ended.plans}
    ranks = defaultdict[tuple[str, int], set[int]](set)
    for line in ended.lines("traces.jsonl"):
        placement, pp_rank = plans[line["generation"]], line["pp_rank"]
        ranks[line["generation"], line["step"]].add(pp_rank)
        bounds, degrees = placement["stage_bounds"], (placement["degrees"]["pp"], placement["virtual_stages"])
        leaves, first_learning = placement["leaf_bounds"][1], sum(bound <= line["freeze_point"] for bound in bounds[1:])
        assert placement["degrees"]["dp"] > 1 or leaves == 8, "a leaf is a micro-batch here"
        order = schedule_named(placement["schedule"]).operations(pp_rank, *degrees, leaves, 1, first_learning)
        reported = line["operations"]
        assert [(one["kind"], one["stage"], one["micro_batch"]) for one in reported] == [operation[:3] for operation in order]
        times = [second for one in reported for second in (one["start"], one["end"])]
        assert times == sorted(times)
    assert ranks and all(found == set(range(plans[at]["degrees"]["pp"])) for (at, _), found in ranks.items())
    assert {"v_half", "zb_h2"} <= {plans[at]["schedule"] for at, _ in ranks}
    assert "as it ran" in (ended.folder / "report.html").read_text()
