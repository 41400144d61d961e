"""Token cells through the whole system: one process repeats bit for bit a run with reshapes that change slices,
freezes, the cache and a kill with slices under way (docs/protocols.md 1.21)."""

from typing import Any

import pytest

from tests.e2e.runs import Workshop

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
