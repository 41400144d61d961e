"""Token cells through the whole system: one process repeats bit for bit a run with reshapes that change slices,
freezes, the cache and a kill with slices under way; and a guard's rollback, a resume and a replay (docs/protocols.md 1.21)."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import Workshop, json_lines, slowed

HALF_A_BATCH = {"batch_size": 16, "reduction_leaves": 4}
"""A step of a language model in cells and tiles takes ten of an image model's: half as many micro-batches suffice here."""

CELLS: dict[str, Any] = {
    "model": {"family": "gpt2", "config": {"n_embd": 32, "n_layer": 5, "n_head": 2, "n_positions": 32}},
    "task": {"kind": "language_modeling"},
    "data": {
        "source": "stdlib-text",
        "vocabulary_size": 512,
        "max_samples": 320,
        "test_fraction": 0.02,  # of the whole text; the default takes longer to evaluate than all steps
        "sequence_length": 32,
        "augmentation": {"mode": "off", "variants": 1, "shift_pixels": 0},
    },
    "training": {"token_cells": 3, "steps": 36, **HALF_A_BATCH},
    "reshapes": [
        {"step": 3, "pp_degree": 4, "dp_degree": 1, "slices": 3},
        {"step": 7, "pp_degree": 4, "dp_degree": 1, "slices": 2},
        {"step": 18, "pp_degree": 2, "dp_degree": 2, "schedule": "gpipe"},
    ],
    "placement": {"pp_degree": 2, "dp_degree": 2},
    "faults": [{"kind": "kill_worker", "step": 22, "worker": 1, "phase": "schedule"}],
}


@pytest.mark.wide
def test_reshapes_freezes_and_a_kill_leave_what_one_process_repeats(workshop: Workshop, tmp_path: Any) -> None:
    ended = workshop.run(tmp_path / "run", CELLS, "--workers", "4")
    assert ended.code == 0 and ended.events("fault"), ended.story()
    slices = {tuple(plan["placement"]["slices"]) for plan in ended.plans}
    assert {(1, 1, 1), (1, 2)} <= slices, ended.story()
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,5,9,13,20,22,36")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "all the same bits" in checked.stdout


HURTS: dict[str, Any] = {
    "model": {"family": "gpt2", "config": {"n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 16}},
    "task": CELLS["task"],
    "data": {**CELLS["data"], "vocabulary_size": 128, "sequence_length": 16},
    "training": {
        **HALF_A_BATCH,
        "token_cells": [1, 9, 6],
        "steps": 16,
        # The decay of the weights grows until each step turns them round and enlarges them: a rise of the loss after the freeze.
        "optimizer": {"name": "adamw", "learning_rate": 0.2, "weight_decay": 50.0},
        "schedule": {"name": "constant", "warmup_fraction": 0.99},
    },
    "freeze": {
        "interval_steps": 4,
        "policy": {"points": dict.fromkeys(range(1, 4), 1)},
        "rails": {"guard_margin": 0.0, "guard_confidence": 0.8, "guard_intervals": 3},
    },
}
ROLLBACK = ("rollback", 11, 6)
"""The guard finds the rise two intervals after step 1, and takes back the freeze that began with step 7."""


@pytest.mark.wide
def test_a_rollback_a_resume_and_a_replay_change_no_bit(workshop: Workshop, tmp_path: Path) -> None:
    """Three stages send slices when the guard rolls back; then all stop, and two stages go on in other slices."""
    alone = workshop.run(tmp_path / "alone", HURTS, "--workers", "1")
    assert ROLLBACK in [(one["decision_kind"], one["effective_step"], one["rollback_to_step"]) for one in alone.decisions]
    placement = {"pp_degree": 3, "dp_degree": 1, "slices": 3}
    # Slow steps, so that the run has not completed before it is asked to stop.
    changes = {**HURTS, "placement": placement, "faults": slowed(9, 0.3, workers=2)}
    folder = tmp_path / "run"
    running = workshop.start(folder, changes, "--workers", "3")
    running.wait_until(lambda: any("starts_at_step" in line for line in json_lines(folder / "metrics.jsonl")), "the rollback")
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    ended = workshop.resume(folder, "--workers", "2", "--set", "placement.pp_degree=2", "--set", "placement.slices=2")
    assert (ended.digest, ended.numerics) == (alone.digest, alone.numerics)
    placed = [plan["placement"] for plan in ended.plans]
    assert [(len(one["workers"]), len(one["slices"])) for one in (placed[0], placed[-1])] == [(3, 3), (2, 2)], ended.story()
    again = {**HURTS, "placement": {**placement, "pp_degree": 2, "schedule": "gpipe"}}
    replayed = workshop.run(tmp_path / "again", again, "--workers", "2", "--replay", str(folder))
    assert (replayed.digest, replayed.numerics) == (alone.digest, alone.numerics)
    checked = workshop.command("verify", str(folder), "--steps", "1,7,11,16")
    assert checked.returncode == 0, checked.stdout + checked.stderr
