"""A node whose model is a different one, or missing: its pod is refused and reported, the others train on, no bit changes."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

from tests.e2e.runs import Running, Workshop, json_lines, slowed

STEPS = 90


def save_models(folder: Path) -> Path:
    """Save two models of one architecture, `one` and `other`; return a copy `model` of the first, as on a node's volume."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=5, num_attention_heads=2, intermediate_size=64, patch_size=4,
                       image_size=8, num_channels=1, num_labels=10)  # fmt: skip
    for seed, name in enumerate(("one", "other")):
        torch.manual_seed(seed)
        ViTForImageClassification(config).save_pretrained(folder / name)
    shutil.copytree(folder / "one", folder / "model")
    return folder / "model"


def put(folder: Path, name: str) -> None:
    """Give `model` the weights of `name`; none if `name` is empty."""
    weights = folder / "model" / "model.safetensors"
    weights.unlink(missing_ok=True)
    if name:
        shutil.copy(folder / name / "model.safetensors", weights)


def cannot_start(running: Running, words: str) -> bool:
    reported = [line["reason"] for line in json_lines(running.folder / "events.jsonl") if line["kind"] == "cannot_start"]
    return any(words in reason for reason in reported)


def message_of(workshop: Workshop, running: Running) -> str:
    return json.loads(workshop.command("status", str(running.folder), "--json").stdout)["message"]


def test_a_run_goes_on_while_one_node_has_another_model_or_none(workshop: Workshop, tmp_path: Path) -> None:
    model = save_models(tmp_path)
    changes: dict[str, Any] = {"model": {"path": str(model), "config": {}}, "training": {"steps": STEPS}}
    reference = workshop.run(tmp_path / "reference", changes).digest
    # Time to look at it, and to come back; once the node is back the run is stopped, and goes on without these.
    slow = [fault for step in (8, 28, 48, 68) for fault in slowed(step, 0.7, workers=1)]
    running = workshop.start(tmp_path / "run", {**changes, "faults": slow}, "--workers", "2")
    running.wait_for_step(5)
    put(tmp_path, "other")
    status = json.loads(workshop.command("status", str(running.folder), "--json").stdout)
    (victim,) = [worker for worker in status["workers"] if worker["pod_name"] == "trainer-1"]
    os.kill(victim["process_id"], signal.SIGKILL)
    running.wait_until(lambda: cannot_start(running, f"its files at model.path {model} are others"), "another model is refused")
    put(tmp_path, "")
    running.wait_until(lambda: cannot_start(running, f"model.path {model}: there are no weights"), "no model is told")
    # The status says so a moment after the event.
    running.wait_until(lambda: message_of(workshop, running).startswith("1 workers cannot start: trainer-1: model.path"), "it")
    log = running.folder / "logs" / "controller.log"
    assert log.read_text().count("worker joined") == 2, "the two of the start, and nobody without the model"
    put(tmp_path, "one")
    # Whether the planner then takes it in depends on what that saves.
    running.wait_until(lambda: log.read_text().count("worker joined") == 3, "the node comes back once it has its files")
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    ended = workshop.resume(running.folder, "--set", "faults=[]")
    assert ended.digest == reference, "whoever is left computes the same"
