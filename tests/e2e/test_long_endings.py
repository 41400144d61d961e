"""The work after the last step may take any time: no worker counts as hanging while tiles are scored and files are written."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import Workshop

FLOOR = 0.5
"""The hang floor. A phase without history has ten times as long, which stands for the ten minutes of the default."""

LONG_ENDING: dict[str, Any] = {
    "model": {"config": {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 1024,
                         "patch_size": 1}},
    "data": {"max_samples": 240, "test_fraction": 0.9, "guard_fraction": 0.2},
    "training": {"steps": 3, "batch_size": 4, "micro_batch_size": 1, "reduction_leaves": 4},
    "freeze": {"interval_steps": 100},
    "evaluation": {"every_intervals": 0},
    "placement": {"pp_degree": 2, "dp_degree": 1},
    "controller": {"hang_floor_seconds": FLOOR, "heartbeat_seconds": 0.1, "start_timeout_seconds": 30.0},
}  # fmt: skip


@pytest.mark.wide
def test_a_final_evaluation_may_take_longer_than_any_deadline(workshop: Workshop, tmp_path: Path) -> None:
    ended = workshop.run(tmp_path / "run", LONG_ENDING, "--workers", "2")
    assert ended.code == 0, ended.story()
    assert ended.events("hang") == ended.events("failure") == []
    seconds = (ended.folder / "result.json").stat().st_mtime - ended.records[-1]["time_seconds"]
    assert seconds > 10 * FLOOR, "it took longer than a phase without history may stand still"
