"""Units frozen from step 1, and a policy that judges by outputs: the same bits on any placement, through any fault.

The job begins with three of seven units frozen, compares outputs at each interval's end and freezes one block more in the middle.
"""

from pathlib import Path

import pytest
from safetensors import safe_open

from tests.e2e.runs import Ended, Workshop, json_lines, slowed

EARLY = {
    "freeze": {
        "initial_units": 3,
        # All units count as settled: measurements decide nothing here, and must be the same in each placement.
        "policy": {"name": "plasticity", "settled_share": 1.0, "points": {}},
        "rails": {"warmup_fraction": 0.6},
    }
}


@pytest.fixture(scope="module")
def alone(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return workshop.run(tmp_path_factory.mktemp("early") / "run", EARLY, "--workers", "1")


def changes(ended: Ended) -> set[tuple[int, str]]:
    """Return the measurements of outputs by interval, with all bits: a resumed run may report an interval once more."""
    return {(line["number"], repr(line["unit_output_changes"])) for line in ended.lines("statistics.jsonl")}


def test_the_prefix_is_frozen_and_cached_from_the_first_step(alone: Ended) -> None:
    assert alone.code == 0, alone.story()
    records = alone.records
    assert [record["freeze_point"] for record in records] == [3] * 26 + [4] * 34
    assert all(record["unit_gradient_norms"][:3] == [0.0] * 3 and record["unit_gradient_norms"][3] > 0 for record in records[:26])
    assert sum(record["cache_hits"] for record in records[:26]) > 0, "before anything else has frozen"
    reported = alone.events("freeze")[0]
    assert reported["step"] == 1 and reported["reason"].startswith(
        "freeze.initial_units is 3: units 0 to 2 are frozen from step 1"
    )
    measured = alone.lines("statistics.jsonl")[1]["unit_output_changes"]
    assert measured[:3] == [0.0] * 3 and measured[-1] == 0.0 and all(0 < one < 1 for one in measured[3:-1])


def test_what_has_never_learnt_has_no_moments(alone: Ended) -> None:
    newest = max(alone.folder.glob("checkpoints/*/*/*/manifest.json"), key=lambda path: int(path.parent.name))
    names = []
    for unit in range(7):
        with safe_open(newest.parent / f"unit-{unit:03d}.safetensors", "np") as file:
            names.append([name for name in file.keys() if "exp_avg" in name])  # noqa: SIM118  it is no dict
    assert [bool(found) for found in names] == [False] * 3 + [True] * 4


def newest_degrees(folder: Path) -> dict[str, int] | None:
    """Return the shape of the newest durable step."""
    records = json_lines(folder / "metrics.jsonl")
    return records[-1].get("degrees") if records else None


def test_deaths_reshapes_and_a_resume_change_no_bit(alone: Ended, workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # Slow steps, in which the killed worker comes back: the shape by command needs all three, before the freeze of step 27.
    faults = [{"kind": "kill_worker", "step": 12, "worker": 0, "phase": "exchange"}, *slowed(13, 1.5, workers=2)]
    reshapes = [{"step": 14, "pp_degree": 3, "dp_degree": 1}]
    moved = {**EARLY, "faults": faults, "reshapes": reshapes, "placement": {"pp_degree": 1, "dp_degree": 3}}
    running = workshop.start(folder, moved, "--workers", "3")
    running.wait_until(lambda: newest_degrees(folder) == {"dp": 1, "pp": 3}, "a step of the shape by command")
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    ended = workshop.resume(folder, "--workers", "2", "--set", "placement.dp_degree=2")
    assert ended.digest == alone.digest
    assert ended.numerics == alone.numerics
    assert {(1, 3), (3, 1)} <= set(ended.shapes)
    assert changes(ended) == changes(alone)
    assert [one["reason"] for one in ended.decisions] == [one["reason"] for one in alone.decisions]


@pytest.mark.wide
def test_it_is_verified_and_replayed(alone: Ended, workshop: Workshop, tmp_path: Path) -> None:
    checked = workshop.command("verify", str(alone.folder), "--steps", "1,2,27")
    assert checked.returncode == 0 and checked.stdout.count("same bits") == 4, checked.stdout + checked.stderr
    replayed = workshop.run(tmp_path / "again", {"elastic": {"cache": False}}, "--workers", "2", "--replay", str(alone.folder))
    assert replayed.digest == alone.digest, "initial units are those of the run that is replayed"
