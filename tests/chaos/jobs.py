"""What chaos trains: two tiny jobs of 40 steps that clip and freeze twice. Everything here is numerics; cases change the rest."""

from dataclasses import dataclass
from typing import Any

from tests.e2e.runs import TINY_DIGITS

STEPS = 40
INTERVAL = 8
LAG = 3
FREEZES_AT = (INTERVAL + LAG, 3 * INTERVAL + LAG)
"""First steps that are computed under freeze points 1 and 3."""

_TRAINING: dict[str, Any] = {
    "steps": STEPS,
    "batch_size": 32,
    "micro_batch_size": 4,
    "reduction_leaves": 8,
    "clip_norm": 0.5,
}
_REST: dict[str, Any] = {
    # On so few steps the guard would only measure noise; the first freeze is decided by interval 1, the second by interval 3.
    "freeze": {
        "interval_steps": INTERVAL,
        "policy": {"name": "manual", "points": {1: 1, 3: 3}},
        "rails": {"guard_margin": 10.0, "total_fraction": 0.7},
    },
    "decisions": {"lag_steps": LAG, "wait_seconds": 120.0},
}


@dataclass(frozen=True)
class Variant:
    """A job by its numerics. values: sections of the job file. num_units: embedding, blocks and head."""

    name: str
    values: dict[str, Any]
    num_units: int


_VIT = Variant(
    "vit",
    {
        "name": "chaos-vit",
        "model": {**TINY_DIGITS["model"], "config": {**TINY_DIGITS["model"]["config"], "num_hidden_layers": 6}},
        "task": {"kind": "image_classification"},
        "data": TINY_DIGITS["data"],
        "training": {**_TRAINING, "optimizer": {"name": "adamw", "learning_rate": 1e-3}},
        **_REST,
    },
    num_units=8,
)

_TIED = Variant(
    "tied",
    {
        "name": "chaos-tied",
        "model": {
            "family": "gpt2",
            "config": {
                "n_embd": 32,
                "n_layer": 6,
                "n_head": 2,
                "n_positions": 16,
                "tie_word_embeddings": True,
            },
            "dropout": 0.1,
        },
        "task": {"kind": "language_modeling"},
        "data": {"source": "text", "max_samples": 320, "sequence_length": 16, "vocabulary_size": 128},
        "training": {**_TRAINING, "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}},
        **_REST,
    },
    num_units=8,
)

VARIANTS = {variant.name: variant for variant in (_VIT, _TIED)}

REFERENCE: dict[str, Any] = {
    "placement": {"workers": 1},
    "elastic": {"cache": False},
    "controller": {"heartbeat_seconds": 0.1, "dead_after_seconds": 60.0},
}
"""One worker that nothing befalls, and no cache."""
