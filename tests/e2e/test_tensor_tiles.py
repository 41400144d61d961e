"""Tensor tiles through the whole system, beside token cells, on single workers and on groups that share the tiles: one
process repeats bit for bit a run with reshapes, freezes, the cache and a kill (docs/protocols.md 1.23, 1.25 and 1.28)."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import THREE_REPLICAS, Ended, Workshop, merged, slowed
from tests.e2e.test_cells import CELLS, HALF_A_BATCH
from tests.e2e.test_pieces import saved_model

TILES: dict[str, Any] = {
    **CELLS,
    "model": {"family": "gpt2", "config": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32}},
    "training": {"token_cells": 2, "tensor_tiles": {"inner": 4, "rows": 2, "vocabulary": True}, "steps": 24, **HALF_A_BATCH},
    "reshapes": [
        {"step": 3, "pp_degree": 1, "dp_degree": 1, "tp_degree": 2, "tensor_rows": "split"},
        {"step": 9, "pp_degree": 1, "dp_degree": 3},
    ],
    "placement": THREE_REPLICAS,
    "faults": [{"kind": "kill_worker", "step": 14, "worker": 1, "phase": "schedule"}],
}


def assert_one_workers_model(ended: Ended, job: dict[str, Any], workshop: Workshop, folder: Path) -> None:
    """Assert that one undisturbed worker has the same digest, figures and saved model."""
    on_one = {"placement": {"tp_degree": 1, "tp_depth": 1, "pp_degree": 1, "dp_degree": 1}, "reshapes": [], "faults": []}
    alone = workshop.run(folder / "alone", merged(job, on_one), "--workers", "1")
    assert (ended.digest, ended.numerics) == (alone.digest, alone.numerics)
    assert saved_model(ended) == saved_model(alone)


@pytest.mark.wide
def test_reshapes_freezes_and_a_kill_leave_what_one_process_repeats(workshop: Workshop, tmp_path: Any) -> None:
    ended = workshop.run(tmp_path / "run", TILES, "--workers", "3")
    assert ended.code == 0 and ended.events("fault"), ended.story()
    divided = [plan["placement"]["degrees"] for plan in ended.plans if plan["placement"]["tensor_rows"] == "split"]
    assert {"dp": 1, "pp": 1, "tp_columns": 2} in divided, ended.story()
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,5,10,14,24")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "all the same bits" in checked.stdout
    assert_one_workers_model(ended, TILES, workshop, tmp_path)


FEW = {"micro_batch_size": 8, "reduction_leaves": 2}
"""Four workers that wait for each other in each block are slow on two cores: two micro-batches a step suffice here."""
PAIRS = {"pp": 1, "dp": 2, "tp_columns": 2}
GROUPS: dict[str, Any] = {
    **TILES,
    "training": {**TILES["training"], **FEW, "state_ranges": 2},
    "placement": {"tp_degree": 2},
    "reshapes": [
        {"step": 3, "pp_degree": 1, "dp_degree": 1, "tp_degree": 4},
        {"step": 7, "pp_degree": 1, "dp_degree": 2, "tp_degree": 2, "shard": "step"},
    ],
    "freeze": {"interval_steps": 12},  # the shapes are asked for before the freeze, which is at step 15
    # While a requested shape has all four workers: later the planner may use only two of them.
    # Slow steps, so that both shapes have been prepared by then.
    "faults": [{"kind": "kill_worker", "step": 13, "worker": 1, "phase": "schedule"}, *slowed(1, 0.3, workers=4)],
}


def test_groups_reshape_lose_a_member_and_leave_what_one_process_repeats(workshop: Workshop, tmp_path: Any) -> None:
    """The member is lost while two groups share out their state."""
    ended = workshop.run(tmp_path / "run", GROUPS, "--workers", "4")
    assert ended.code == 0 and ended.fault(0), ended.story()
    degrees = [plan["placement"]["degrees"] for plan in ended.plans]
    reads = [record["cache_hits"] + record["cache_misses"] for record in ended.records if record["cache_hits"]]
    assert reads and set(reads) == {16}, "a group has each sample of the batch from the cache once"
    shards = [plan["placement"]["shard"] for plan in ended.plans if plan["placement"]["degrees"] == PAIRS]
    assert "step" in shards, ended.story()
    assert degrees[0]["tp_columns"] == 2 and {"dp": 1, "pp": 1, "tp_columns": 4} in degrees, ended.story()
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,10,24")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "all the same bits" in checked.stdout
    assert_one_workers_model(ended, GROUPS, workshop, tmp_path)


LEVELS: dict[str, Any] = {
    **TILES,
    "training": {**GROUPS["training"], "tensor_tiles": {"inner": 2, "hidden": 2}, "steps": 16},
    "placement": {"tp_degree": 2, "tp_depth": 2},
    "reshapes": [
        {"step": 3, "pp_degree": 2, "dp_degree": 1, "tp_depth": 2},
        {"step": 7, "pp_degree": 1, "dp_degree": 2, "tp_depth": 2, "shard": "step"},
    ],
    "freeze": GROUPS["freeze"],
    "faults": GROUPS["faults"],
}


def test_groups_with_levels_reshape_lose_a_member_and_leave_what_one_process_repeats(workshop: Workshop, tmp_path: Any) -> None:
    """Columns and levels, then a pipeline of levels, then replicas of levels that share out their state, one of which is lost."""
    ended = workshop.run(tmp_path / "run", LEVELS, "--workers", "4")
    assert ended.code == 0 and ended.fault(0), ended.story()
    degrees = [plan["placement"]["degrees"] for plan in ended.plans]
    assert degrees[0] == {"dp": 1, "pp": 1, "tp_columns": 2, "tp_depth": 2}, ended.story()
    assert {"dp": 1, "pp": 2, "tp_depth": 2} in degrees and {"dp": 2, "pp": 1, "tp_depth": 2} in degrees, ended.story()
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,10,16")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "all the same bits" in checked.stdout
    assert_one_workers_model(ended, LEVELS, workshop, tmp_path)


HALVED: dict[str, Any] = {
    **TILES,
    "placement": {"tp_degree": 4, "pp_degree": 1, "dp_degree": 1},
    "reshapes": [],
    "faults": [{"kind": "kill_worker", "step": 9, "worker": 1, "phase": "schedule"}, *slowed(3, 0.1, workers=4)],
}


@pytest.mark.wide
def test_a_group_of_four_that_loses_a_member_goes_on_as_a_group_of_two(workshop: Workshop, tmp_path: Any) -> None:
    ended = workshop.run(tmp_path / "run", HALVED, "--workers", "4")
    assert ended.code == 0 and ended.fault(0), ended.story()
    columns = [plan["placement"]["degrees"]["tp_columns"] for plan in ended.plans]
    assert columns[0] == 4 and 2 in columns, ended.story()
    assert_one_workers_model(ended, HALVED, workshop, tmp_path)
