"""The tensor table of a family: which linear layers of its blocks are cut into tiles, and how."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PretrainedConfig

CUTS_OF_PLAN = {"colwise": True, "rowwise": False}
"""Supported styles of transformers' own plan, and whether the layer is a column layer."""


@dataclass(frozen=True)
class TensorTable:
    """The linear layers of a family's blocks that are computed in tiles.

    A layer is named by the end of its name within the unit, such as "attn.c_attn", which stands for all layers that it matches.

    Args:
        columns: layers whose outputs are cut: the first ones of attention and feed-forward.
        rows: layers whose inputs are cut: the last ones.
        parts: column layers that hold several matrices side by side, with their number: 3 for a packed query, key and value.
        together: column layers that read the same input, in the order in which their shares of its gradient are added.
        heads: fields of the config that the number of tiles must divide; fields that a config lacks are ignored.
        embedding: the embedding of the vocabulary in the first unit; empty: tiles cannot cut it.
        logits: the linear layer of the last unit that computes the logits of the vocabulary, whose output is the unit's; empty:
            the head has none, or tiles cannot cut it.
        inner_attributes: attributes of modules that hold an inner width, which is smaller if fewer tiles are held.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    parts: dict[str, int] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    heads: tuple[str, ...] = ("num_attention_heads", "num_key_value_heads")
    embedding: str = ""
    logits: str = ""
    inner_attributes: tuple[str, ...] = ()


def from_tp_plan(config: PretrainedConfig) -> TensorTable | None:
    """The table that corresponds to transformers' plan of a model (`base_model_tp_plan`); None if the model has no plan.

    Column layers below the same module are assumed to read the same input. Raises ValueError for a style that is not colwise or
    rowwise.
    """
    plan: dict[str, Any] = getattr(config, "base_model_tp_plan", None) or {}
    inner = {name.split(".*.", 1)[1]: style for name, style in plan.items() if ".*." in name}
    for name, style in inner.items():
        if style not in CUTS_OF_PLAN:
            raise ValueError(
                f"base_model_tp_plan of {config.model_type}: {style} at {name} is not supported; set inner and hidden of "
                "training.tensor_tiles to 1, or give the family a tensor_table"
            )
    if not inner:
        return None
    columns = tuple(name for name, style in inner.items() if CUTS_OF_PLAN[style])
    owners: dict[str, list[str]] = {}
    for name in columns:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    together = tuple(tuple(names) for names in owners.values() if len(names) > 1)
    return TensorTable(columns, tuple(name for name in inner if name not in columns), together=together)


def layers_named(unit: nn.Module, ending: str) -> dict[str, nn.Module]:
    """The modules of a unit whose names equal `ending`, or end with a dot and `ending`."""
    return {name: module for name, module in unit.named_modules() if name == ending or name.endswith(f".{ending}")}
