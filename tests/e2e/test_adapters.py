"""Adapters through the whole system: frozen and cached from step 1, a pipeline, a kill and a resume end with one worker's
digest; the saved adapters load in plain peft (docs/protocols.md 1.20)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import ViTForImageClassification

from frostline_contract.pieces import Pieces
from frostline_trainer.checkpoints.reading import complete_checkpoints, load_piece
from tests.e2e.runs import Ended, Workshop, merged, slowed

ADAPTED: dict[str, Any] = {
    "model": {"adapters": {"rank": 4, "dropout": 0.1, "blocks": "last half"}},
    "checkpoint": {"every_steps": 10},
}
"""Blocks 2, 3 and 4 of five: units 0 to 2 never learn, whatever is decided before step 27, when block 2 freezes."""


@pytest.fixture(scope="module")
def alone(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return workshop.run(tmp_path_factory.mktemp("adapted") / "run", ADAPTED, "--workers", "1")


@pytest.mark.wide
def test_a_kill_that_only_a_checkpoint_answers_and_a_resume_end_with_one_workers_digest(
    alone: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """All pods share a node, so the lost member's units have no buddy; the others go back to a checkpoint."""
    changes = {
        **ADAPTED,
        "placement": {"pp_degree": 3, "dp_degree": 1, "pods_per_node": 3},
        # Slow steps at the end, so that the run has not completed before it is asked to stop.
        "faults": [{"kind": "kill_worker", "step": 14, "worker": 1, "phase": "exchange"}, *slowed(30, 0.5, workers=2)],
    }
    running = workshop.start(tmp_path / "run", changes, "--workers", "3")
    running.wait_for_step(30)
    running.interrupt()
    assert running.end().code == 3
    ended = workshop.resume(tmp_path / "run", "--workers", "2", "--set", "placement.pp_degree=2")
    assert ended.digest == alone.digest
    assert ended.numerics == alone.numerics
    assert [plan["start"] for plan in ended.plans].count("checkpoint") == 2, ended.story()
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,27,60")
    assert checked.returncode == 0, checked.stdout + checked.stderr


IN_TILES: dict[str, Any] = {
    **ADAPTED,
    "training": {"tensor_tiles": {"inner": 2}, "steps": 40},
    "placement": {"tp_degree": 2, "pp_degree": 1, "dp_degree": 1, "pods_per_node": 4},
    "reshapes": [{"step": 8, "pp_degree": 2, "dp_degree": 1, "tp_degree": 2}],
    # Slow steps, so that the shape has been prepared by then. All pods share a node, so that no tile has a buddy.
    "faults": [{"kind": "kill_worker", "step": 20, "worker": 1, "phase": "schedule"}, *slowed(8, 0.25, workers=4)],
}


@pytest.mark.wide
def test_groups_reshape_lose_a_member_and_leave_one_workers_model(workshop: Workshop, tmp_path: Path) -> None:
    """A group that goes back to a checkpoint reads what never learns anew, of which its modules had tiles."""
    ended = workshop.run(tmp_path / "run", IN_TILES, "--workers", "4")
    assert ended.code == 0 and ended.fault(0), ended.story()
    degrees = [plan["placement"]["degrees"] for plan in ended.plans]
    assert degrees[0] == {"pp": 1, "dp": 1, "tp_columns": 2} and {"pp": 2, "dp": 1, "tp_columns": 2} in degrees, ended.story()
    assert "checkpoint" in [plan["start"] for plan in ended.plans], ended.story()
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,12,27,40")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    on_one = {"placement": {"tp_degree": 1}, "reshapes": [], "faults": []}
    alone = workshop.run(tmp_path / "alone", merged(IN_TILES, on_one), "--workers", "1")
    assert (ended.digest, ended.numerics) == (alone.digest, alone.numerics)
    saved = [(one.folder / "model" / "adapter_model.safetensors").read_bytes() for one in (ended, alone)]
    assert saved[0] == saved[1]


def test_the_prefix_is_frozen_and_cached_from_step_1_and_checkpoints_hold_what_learns(alone: Ended) -> None:
    assert [record["freeze_point"] for record in alone.records] == [3] * 26 + [4] * 34
    assert sum(record["cache_hits"] for record in alone.records) > 100
    folder, manifest = complete_checkpoints(alone.folder / "checkpoints")[-1]
    states = [load_piece(folder, manifest, Pieces(7), unit) for unit in range(7)]
    assert [bool(state) for state in states] == [False] * 3 + [True] * 4
    assert all("lora_" in key for state in states[:-1] for key in state)


def test_plain_peft_loads_what_is_saved(alone: Ended) -> None:
    saved = alone.folder / "model"
    plain = ViTForImageClassification.from_pretrained(saved / "base")
    adapted = PeftModel.from_pretrained(plain, saved).eval()
    stored = load_file(saved / "adapter_model.safetensors")
    loaded = {name.replace(".default", ""): tensor for name, tensor in adapted.state_dict().items()}
    assert stored and all(torch.equal(loaded[name.replace("classifier.", "classifier.modules_to_save.")
                                             .replace("layernorm.", "layernorm.modules_to_save.")], tensor)
                          for name, tensor in stored.items())  # fmt: skip
    assert any(tensor.abs().max() > 0 for name, tensor in stored.items() if "lora_B" in name), "they have learnt"
