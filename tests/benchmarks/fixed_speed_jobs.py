"""Jobs of the benchmarks on workers of fixed speed: a ViT, a BERT and a GPT-2 whose operations last long beside a quota's period.

A worker that has waited starts with a period's quota unspent, and the kernel counts processor time by ticks of some milliseconds:
work of a few milliseconds is quicker after a wait than in a row. So micro-batches are so large that a stage's forward takes tens
of milliseconds of processor time, five times that by the clock.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.devices import SHARE, WORKERS
from tests.benchmarks.subjects import DIGITS_JOB

TEXTS, WORDS = 512, 400


def through(shapes: Sequence[tuple[int, int]], steps: int) -> list[dict[str, Any]]:
    """Return reshapes into all shapes but the first, one after each `steps` steps."""
    return [{"step": place * steps, "pp_degree": pp, "dp_degree": dp} for place, (pp, dp) in enumerate(shapes) if place]


def fixed_speed_job(subject: str, steps: int, shape: tuple[int, int], frozen: int = 0, cached: bool = False,
                    blocks: int | None = None, **changes: Any) -> dict[str, Any]:  # fmt: skip
    """Return a subject's job on four workers of fixed speed, in which no unit freezes after step 1.

    Args:
        frozen: number of units frozen from step 1.
        cached: whether the frozen prefix is read from the cache or computed.
        blocks: of the model; None: six.
        changes: further sections of the job.
    """
    job = {"digits": _digits, "bert": _bert, "language": _language}[subject]()
    if blocks is not None:
        job["model"]["config"]["n_layer" if subject == "language" else "num_hidden_layers"] = blocks
    job["training"] |= {"steps": steps, "device": "cpu", "audit_every_steps": 0}  # a plan has room for an audit, if one may come
    job["training"].pop("epochs", None)
    rest: dict[str, Any] = {
        # Intervals are so short that a reshape happens at its step; no policy decides anything.
        "freeze": {"interval_steps": 8, "initial_units": frozen, "policy": {"name": "manual", "points": {}}},
        "decisions": {"lag_steps": 3, "wait_seconds": 60.0},
        "evaluation": {"every_intervals": 0, "test_at_end": False},
        "checkpoint": {"every_steps": 0},
        "placement": {"workers": WORKERS, "worker_cpus": SHARE, "pp_degree": shape[0], "dp_degree": shape[1]},
        "cache": {"use": "always" if cached else "never", "memory_bytes": 256 << 20},
        "controller": {"heartbeat_seconds": 1.0},
    }
    for section, fields in changes.items():
        both = isinstance(fields, dict) and isinstance(rest.get(section), dict)
        rest[section] = {**rest[section], **fields} if both else fields
    return {**job, **rest}


def _digits() -> dict[str, Any]:
    job = yaml.safe_load(DIGITS_JOB.read_text())
    job["training"] |= {"batch_size": 640, "micro_batch_size": 80, "reduction_leaves": 8}
    return job


def _bert() -> dict[str, Any]:
    return {
        "name": "bench-bert",
        "model": {
            "family": "bert",
            "config": {
                "hidden_size": 192,
                "num_hidden_layers": 6,
                "num_attention_heads": 6,
                "intermediate_size": 768,
                "max_position_embeddings": 32,
            },
            "dropout": 0.0,
        },
        "task": {"kind": "text_classification"},
        "data": {"source": "csv", "sequence_length": 32, "vocabulary_size": 512},
        "training": {
            "batch_size": 64,
            "micro_batch_size": 8,
            "reduction_leaves": 8,
            "optimizer": {"name": "adamw", "learning_rate": 1e-4},
            "clip_norm": 1.0,
        },
    }


def _language() -> dict[str, Any]:
    return {
        "name": "bench-language",
        "model": {
            "family": "gpt2",
            "config": {"n_embd": 192, "n_layer": 6, "n_head": 6, "n_positions": 256, "tie_word_embeddings": False},
            "dropout": 0.0,
        },
        "task": {"kind": "language_modeling"},
        "data": {"source": "stdlib-text", "sequence_length": 256, "vocabulary_size": 512, "max_samples": 128},
        "training": {
            "batch_size": 4,
            "micro_batch_size": 1,
            "reduction_leaves": 4,
            "optimizer": {"name": "adamw", "learning_rate": 1e-4},
            "clip_norm": 1.0,
        },
    }


def made_texts(path: Path) -> Path:
    """Write texts of made-up words with random labels, the same every time."""
    rng = random.Random("frostline benchmark texts")
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 8))) for _ in range(WORDS)]
    lines = [f"{' '.join(rng.choices(words, k=40))},{rng.randrange(2)}" for _ in range(TEXTS)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path
