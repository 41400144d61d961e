"""Eight runs of one frozen prefix by `frostline sweep`, with a shared cache and without a cache."""

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.measuring import Effort, Report, Row, Spread

ROOT = Path(__file__).parents[2]
RUNS, QUICK_RUNS = 8, 2
GOAL = 1 / 3
SECONDS_MAX = 900.0
BLOCKS, FROZEN_BLOCKS = 12, 11
SAMPLES, TOKENS, EPOCHS, BATCH = 240, 64, 3, 24
WORDS = 400


def sweep(effort: Effort) -> Report:
    """Measure both sweeps once: each sweep's runs are its repetitions."""
    count = QUICK_RUNS if effort.quick else RUNS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job.yaml"
        job.write_text(yaml.safe_dump(_job(_texts(folder / "texts.csv"), 1 if effort.quick else EPOCHS)))
        shared, alone = _swept(job, folder / "shared", count), _swept(job, folder / "alone", count, "elastic.cache=false")
    assert [run["digest"] for run in shared] == [run["digest"] for run in alone], "the cache changes no bit"
    hits = sum(run["cache_hits"] for run in shared)
    asked = hits + sum(run["cache_misses"] for run in shared)
    note = f"{100 * hits / asked:.0f} % hits; each run ends with the digest that it has without a cache"
    return Report(
        f"A sweep of {RUNS} runs with a frozen prefix",
        f"`frostline sweep` over {RUNS} learning rates of a BERT of {BLOCKS} blocks (hidden size 256, texts of {TOKENS} tokens "
        f"at most), of which the embedding and {FROZEN_BLOCKS} blocks are frozen from step 1: {SAMPLES} texts, {EPOCHS} epochs, "
        "one worker a run, one run after the other. Against the same sweep with `elastic.cache: false`, which computes the "
        "frozen part in each step of each run. *steps* is the seconds of the steps; *in all* every second of every worker from "
        "its admission to its end, with evaluation, checkpoints and the final score.",
        [
            _row("steps", _steps(shared), _steps(alone), GOAL, note),
            _row("in all", _in_all(shared), _in_all(alone), GOAL),
        ],
    )


def _row(what: str, shared: float, alone: float, goal: float, note: str = "") -> Row:
    sides = {"without s": alone, "shared s": shared}
    return Row(f"worker-seconds, {what}", "shared / without", "x", Spread.of([shared / alone]), sides, at_most=goal, note=note)


def _steps(runs: list[dict[str, Any]]) -> float:
    return sum(run["worker_seconds"] for run in runs)


def _in_all(runs: list[dict[str, Any]]) -> float:
    return sum(run["ledger"]["worker_seconds"] for run in runs)


def _swept(job: Path, folder: Path, count: int, *overrides: str) -> list[dict[str, Any]]:
    """Run a sweep. Returns the figures of its runs, in order."""
    rates = ",".join(f"{(number + 1) * 1e-4:g}" for number in range(count))
    words = ["sweep", "-f", str(job), "--out", str(folder), "--no-report", "--vary", f"training.optimizer.learning_rate={rates}"]
    for override in overrides:
        words += ["--set", override]
    ended = subprocess.run(
        [sys.executable, "-m", "frostline_controller.cli.main", *words], cwd=ROOT, env=os.environ, capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [run["figures"] for run in json.loads((folder / "sweep.json").read_text())["runs"]]


def _texts(path: Path) -> Path:
    """Write generated texts of two classes: words drawn evenly, a third of them from the class's own half."""
    draw = random.Random(20)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(SAMPLES + 60):
            label = number % 2
            words = [draw.randrange(WORDS) // 2 * 2 + label if draw.random() < 1 / 3 else draw.randrange(WORDS)
                     for _ in range(draw.randint(TOKENS // 2, TOKENS))]  # fmt: skip
            writer.writerow([" ".join(f"w{word}" for word in words), label])
    return path


def _job(texts: Path, epochs: int) -> dict[str, Any]:
    config = {"hidden_size": 256, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "intermediate_size": 1024}
    return {
        "name": "sweep-bench",
        "model": {"family": "bert", "config": config, "dropout": 0.0},
        "task": {"kind": "text_classification"},
        "data": {"source": "csv", "path": str(texts), "sequence_length": TOKENS},
        "training": {"epochs": epochs, "batch_size": BATCH, "micro_batch_size": 6, "reduction_leaves": 4, "device": "cpu"},
        "freeze": {"initial_units": 1 + FROZEN_BLOCKS, "interval_steps": 30, "policy": {"name": "manual", "points": {}}},
        "placement": {"workers": 1},
        "cache": {"memory_bytes": 256 << 20},
    }
