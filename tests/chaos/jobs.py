"""The jobs of chaos: tiny jobs of 40 steps that clip and freeze.

One has a guard that rolls back, one a batch that grows with the replicas, one begins frozen, one has adapters, some compute token
cells. Everything here is numerics; cases change the rest.
"""

from dataclasses import dataclass, replace
from typing import Any

from frostline_contract.pieces import Pieces
from tests.e2e.runs import TINY_DIGITS

STEPS = 40
INTERVAL = 8
LAG = 3
FREEZES_AT = (INTERVAL + LAG, 3 * INTERVAL + LAG)
"""The first steps that are computed under freeze points 1 and 3."""

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
    """A job by its numerics. values: sections of the job file. num_units: embedding, blocks and head.

    state_ranges: pieces of each unit; where there are several, replicas may share them out. reference: (pp, dp) of the
    undisturbed run: one worker, unless the batch grows with the replicas.
    """

    name: str
    values: dict[str, Any]
    num_units: int
    reference: tuple[int, int] = (1, 1)
    state_ranges: int = 1

    @property
    def num_pieces(self) -> int:
        """The number of pieces of the run's state."""
        grid = self.values["training"].get("tensor_tiles", {})
        inner, hidden = grid.get("inner", 1), grid.get("hidden", 1)
        return Pieces.cut(self.num_units, self.state_ranges, inner * hidden, hidden).count

    def quiet(self) -> dict[str, Any]:
        """Return the job of the undisturbed run: no cache, and no more workers than its numerics need."""
        pp, dp = self.reference
        return {
            **self.values,
            "placement": {"workers": pp * dp, "pp_degree": pp, "dp_degree": dp},
            "elastic": {"cache": False},
            "controller": {"heartbeat_seconds": 0.1, "dead_after_seconds": 60.0},
        }


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

_HURT = Variant(
    "hurt",
    {
        **_VIT.values,
        "name": "chaos-hurt",
        # The decay of the weights grows with the learning rate, until each step turns the weights round and enlarges them: the
        # guard's loss rises after the freeze on every processor, which is rolled back. Gradients play no part in it.
        "training": {
            **_TRAINING,
            "optimizer": {"name": "adamw", "learning_rate": 0.1, "weight_decay": 50.0},
            "schedule": {"name": "constant", "warmup_fraction": 0.99},
        },
        "freeze": {
            "interval_steps": INTERVAL,
            "policy": {"name": "manual", "points": dict.fromkeys(range(1, 6), 1)},
            "rails": {"guard_margin": 0.0, "guard_confidence": 0.8, "guard_intervals": 4},
        },
    },
    num_units=8,
)

_REPLICAS = Variant(
    "replicas",
    {
        **_VIT.values,
        "name": "chaos-replicas",
        "training": {
            **_TRAINING,
            "batch": "per_replica",
            "batch_size": 16,
            "reduction_leaves": 4,
            "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        },
    },
    num_units=8,
    reference=(1, 2),
)

LOADED = "loaded"
"""The variant whose weights come from a folder, `model.path`, of which each case has its own."""

_LOADED = Variant(
    LOADED,
    {**_VIT.values, "name": "chaos-loaded", "model": {**_VIT.values["model"], "config": {}, "path": "model"}},
    num_units=8,
)

_EARLY = Variant(
    "early",
    {
        **_VIT.values,
        "name": "chaos-early",
        # Two units are frozen from step 1; then all blocks count as settled, and the caps decide the depth.
        "freeze": {**_REST["freeze"], "initial_units": 2, "policy": {"name": "plasticity", "settled_share": 1.0}},
    },
    num_units=8,
)

_ADAPTED = Variant(
    "adapted",
    {
        **_TIED.values,
        "name": "chaos-adapted",
        "model": {**_TIED.values["model"], "adapters": {"rank": 4, "dropout": 0.1, "blocks": [0, 1, 3, 5]}},
    },
    num_units=8,
)
"""Two blocks between others have no adapters: they learn nothing and hand gradients on."""
ADAPTED = _ADAPTED.name

RANGES = 6
"""The number of ranges: as many as there are ever replicas."""


def _in_ranges(variant: Variant) -> Variant:
    """Return the same variant with its units in several ranges: other norms, so other numerics."""
    values = variant.values
    training = {**values["training"], "state_ranges": RANGES}
    name = f"{variant.name}-ranges"
    return Variant(name, {**values, "name": f"chaos-{name}", "training": training}, variant.num_units, state_ranges=RANGES)


_TILED = Variant(
    "tiled",
    {**_VIT.values, "name": "chaos-tiled", "training": {**_VIT.values["training"], "tensor_tiles": {"inner": 2, "rows": 2}}},
    num_units=8,
)

_SHARED = (_in_ranges(_VIT), _in_ranges(_TIED))
SHARED = tuple(variant.name for variant in _SHARED)
"""Variants whose replicas may share out their state."""
TILED = _TILED.name

_ADAPTED_IN_TILES = Variant(
    "adapted-tiled",
    {
        **_ADAPTED.values,
        "name": "chaos-adapted-tiled",
        "training": {**_ADAPTED.values["training"], "tensor_tiles": {"inner": 2}},
    },
    num_units=8,
)
ADAPTED_IN_TILES = _ADAPTED_IN_TILES.name

_IN_A_GRID = _in_ranges(
    Variant(
        "grid",
        {
            **_VIT.values,
            "name": "chaos-grid",
            "training": {**_VIT.values["training"], "tensor_tiles": {"inner": 2, "hidden": 2}},
        },
        num_units=8,
    )
)
IN_A_GRID = _IN_A_GRID.name
"""The variant whose groups may have levels, and share out their state."""

_TILED_AND_SHARED = _in_ranges(_TILED)
TILED_AND_SHARED = _TILED_AND_SHARED.name
"""The variant whose replicas may be groups that share tiles, and may share out their state."""

CELLS = (1, 9, 2, 4)
"""The grid of the language model's 16 tokens: lengths that no message has in common with the one before it."""


def _in_cells(variant: Variant) -> Variant:
    """Return the same variant with its sequences in cells: other sums, so other numerics."""
    values = variant.values
    name = f"{variant.name}-cells"
    training = {**values["training"], "token_cells": list(CELLS)}
    return replace(variant, name=name, values={**values, "name": f"chaos-{name}", "training": training})


_HURT_TEXT = Variant(
    _HURT.name,
    {**_TIED.values, "training": _HURT.values["training"], "freeze": _HURT.values["freeze"]},
    num_units=8,
)
"""The language model with the optimizer and the guard of the job that is rolled back; only drawn in cells."""

_IN_CELLS = (_in_cells(_TIED), _in_cells(_in_ranges(_TIED)), _in_cells(_HURT_TEXT))
IN_CELLS = dict(zip((_TIED.name, SHARED[1], _HURT.name), (variant.name for variant in _IN_CELLS), strict=True))
"""The variant with cells by the name of the one without."""

_PLAIN = (_VIT, _TIED, _HURT, _REPLICAS, _LOADED, _EARLY, _ADAPTED)
_MADE = (*_PLAIN, *_SHARED, _TILED, _ADAPTED_IN_TILES, _TILED_AND_SHARED, _IN_A_GRID, *_IN_CELLS)
VARIANTS = {variant.name: variant for variant in _MADE}
