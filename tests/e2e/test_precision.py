"""bfloat16 over float32 weights, through the whole system: reshapes, freezes, cache, a kill, a resume and `verify` end with the
digest of one undisturbed worker; so does a loss in chunks of tokens (docs/protocols.md 1.18 and 1.19)."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from frostline_contract.pieces import Pieces
from frostline_trainer.checkpoints.reading import complete_checkpoints, load_piece
from tests.e2e.conftest import RESHAPES
from tests.e2e.runs import Ended, Workshop, slowed
from tests.e2e.test_cells import HALF_A_BATCH

MIXED: dict[str, Any] = {"training": {"precision": "mixed_bfloat16"}, "checkpoint": {"saved_precision": "bfloat16"}}
CHUNKED: dict[str, Any] = {
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
    "training": {"precision": "mixed_bfloat16", "loss_chunk_tokens": 12, "steps": 40, **HALF_A_BATCH},
}


@pytest.fixture(scope="module")
def alone(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ended]:
    """The undisturbed run on one worker in mixed precision."""

    @cache
    def ended(name: str) -> Ended:
        return workshop.run(tmp_path_factory.mktemp(name) / "run", {"mixed": MIXED, "chunked": CHUNKED}[name], "--workers", "1")

    return ended


@pytest.mark.wide
def test_shapes_freezes_cache_and_a_kill_end_with_one_digest(
    alone: Callable[[str], Ended], one_worker: Ended, workshop: Workshop, tmp_path: Any
) -> None:
    kill = {"kind": "kill_worker", "step": 22, "worker": 1, "phase": "exchange"}
    changes = {**MIXED, "reshapes": RESHAPES[4], "faults": [kill], "placement": {"pp_degree": 1, "dp_degree": 4}}
    ended = workshop.run(tmp_path / "run", changes, "--workers", "4")
    assert ended.digest == alone("mixed").digest != one_worker.digest
    assert ended.numerics == alone("mixed").numerics
    assert ended.events("fault") and len(ended.shapes) > 2, ended.story()
    assert sum(record["cache_hits"] for record in ended.records) > 100
    hashes = [run.records[-1]["numerics_hash"] for run in (ended, alone("mixed"), one_worker)]
    assert hashes[0] == hashes[1] != hashes[2], "the numerics' history names the boundaries' type"
    assert ended.result["settings"]["precision"] == "mixed_bfloat16"
    checked = workshop.command("verify", str(ended.folder), "--steps", "1,11,27,60")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "all the same bits" in checked.stdout


def test_master_weights_are_kept_and_the_model_is_saved_as_asked(alone: Callable[[str], Ended]) -> None:
    folder = alone("mixed").folder
    newest, manifest = complete_checkpoints(folder / "checkpoints")[-1]
    state = load_piece(newest, manifest, Pieces(len(manifest["units"])), 1)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    saved = load_file(folder / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}


@pytest.mark.wide
def test_a_drained_run_is_resumed_in_another_shape(alone: Callable[[str], Ended], workshop: Workshop, tmp_path: Any) -> None:
    running = workshop.start(tmp_path / "run", {**MIXED, "faults": slowed(20, 0.5, workers=2)}, "--workers", "2")
    running.wait_for_step(20)
    running.interrupt()
    assert running.end().code == 3
    ended = workshop.resume(tmp_path / "run", "--workers", "3")
    assert ended.digest == alone("mixed").digest
    assert ended.records[-1]["numerics_hash"] == alone("mixed").records[-1]["numerics_hash"]


@pytest.mark.wide
def test_a_loss_in_chunks_ends_with_one_digest(alone: Callable[[str], Ended], workshop: Workshop, tmp_path: Any) -> None:
    ended = workshop.run(tmp_path / "run", CHUNKED, "--workers", "3")
    assert ended.digest == alone("chunked").digest
    assert ended.numerics == alone("chunked").numerics


def test_planned_and_measured_memory_stand_side_by_side(alone: Callable[[str], Ended]) -> None:
    (row,) = alone("mixed").result["memory"][-1:]
    assert row["planned_bytes"] > 0 and row["peak_bytes"] > row["planned_bytes"], "a CPU's figure is the whole process's"
    assert (row["device"], row["communicators"]) == ("cpu", 0)
