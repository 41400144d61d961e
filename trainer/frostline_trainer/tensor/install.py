"""Installs tensor tiles in a model's blocks: checks that the model fits, then replaces submodules in place.

Names, shapes and order of parameters do not change, so checkpoints, digests and saved models do not depend on tiles.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from frostline_trainer.families.base import CutModel, Family
from frostline_trainer.tensor.adapted import base_of, tile_adapted
from frostline_trainer.tensor.attention import PREFIX, TiledActivation, TiledDropout
from frostline_trainer.tensor.by_rows import RowWise, compute_by_rows
from frostline_trainer.tensor.cut import Cut, VocabularyCut
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.linear import TiledColumn, TiledLinear, TiledRow, Together
from frostline_trainer.tensor.rows import WHOLE, gathered
from frostline_trainer.tensor.table import TensorTable, from_tp_plan, layers_named
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.tensor.vocabulary import TiledEmbedding, TiledVocabulary

WIDTH_OF = 8
"""A tile's width must be a multiple of this: optimizers give elements inside a vector register other bits than at its end."""
ACTIVATIONS = (
    *{kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values() if isinstance(kind, (type, tuple))},
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid, nn.Mish, nn.SELU, nn.Softplus, nn.Softsign),
)
"""Modules that compute each element by itself: those that transformers has names for, and torch's own."""

Module = TypeVar("Module", bound=nn.Module)


def table_of(family: Family, config: PretrainedConfig) -> TensorTable:
    """The family's tensor table. Raises ValueError if it has none."""
    own_table = getattr(family, "tensor_table", None)
    table = from_tp_plan(config) if own_table is None else own_table(config)
    if table is None:
        raise ValueError(
            f"family {family.name} has no tensor_table and its config no base_model_tp_plan; inner and hidden of "
            "training.tensor_tiles must be 1, or give the family a table"
        )
    return table


def check_heads(table: TensorTable, config: PretrainedConfig, inner: int) -> None:
    """Raise ValueError if tiles do not hold whole heads."""
    for name in table.heads:
        count = getattr(config, name, None) or inner
        if count % inner:
            fitting = ", ".join(str(1 << power) for power in range(count.bit_length()) if count % (1 << power) == 0)
            what = f"{count} heads" if name == "num_attention_heads" else f"{name} {count}"
            raise ValueError(
                f"training.tensor_tiles.inner is {inner} and the model has {what}; it must divide them and be a power of two: "
                f"{fitting}"
            )


def tile_blocks(cut: CutModel, family: Family, tiles: Tiles) -> None:
    """Let each block of a model compute tiles, in place. Raises ValueError if a block does not fit."""
    table = table_of(family, cut.model.config)
    check_heads(table, cut.model.config, tiles.total)
    for unit, name in zip(cut.units[1:-1], cut.unit_names[1:-1], strict=True):
        tile_unit(unit, table, tiles, f"model.family {family.name}, {name}")


def tile_embedding(
    unit: nn.Module, table: TensorTable, tiles: Tiles, words: str = "the unit", model: nn.Module | None = None
) -> None:
    """Let the first unit look up tiles of the vocabulary, in place. Other arguments as of `tile_unit`.

    model: the whole model, which has the unit's modules too.

    Raises ValueError if the table names no embedding of the unit that tiles can cut.
    """
    name, layer = _the_one(unit, table.embedding, "embedding", nn.Embedding, words)
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise ValueError(
            f"{words}, {name}: max_norm, scale_grad_by_freq and sparse depend on all entries or tokens; "
            "set training.tensor_tiles.vocabulary to false"
        )
    tiled = TiledEmbedding(layer, VocabularyCut.of(layer.num_embeddings, tiles.total), tiles)
    _replace_everywhere((unit, model), layer, tiled)


def tile_logits(
    unit: nn.Module, table: TensorTable, tiles: Tiles, words: str = "the unit", model: nn.Module | None = None
) -> TiledVocabulary:
    """Let the last unit compute logits in tiles of the vocabulary, in place. Arguments as of `tile_embedding`.

    Returns:
        Computes losses from these logits.

    Raises:
        ValueError: the table names no linear layer of the unit.
    """
    _, layer = _the_one(unit, table.logits, "logits", nn.Linear, words)
    tiled = TiledColumn(layer, VocabularyCut.of(layer.out_features, tiles.total), tiles)
    Together([tiled])
    _replace_everywhere((unit, model), layer, tiled)
    return TiledVocabulary(tiled)


def _the_one(unit: nn.Module, ending: str, field: str, kind: type[Module], words: str) -> tuple[str, Module]:
    """(name, module) of the module of this kind that a field of the table names. Raises ValueError if there is none."""
    found = [(name, one) for name, one in layers_named(unit, ending).items() if isinstance(one, kind)] if ending else []
    if len(found) != 1:
        what = f"{len(found)} modules of type {kind.__name__} for {field}={ending!r}" if ending else f"no {field}"
        raise ValueError(
            f"{words}: training.tensor_tiles.vocabulary is true and the family's tensor_table names {what}; it must name one: "
            "correct the table, or set vocabulary to false"
        )
    return found[0]


def tile_unit(unit: nn.Module, table: TensorTable, tiles: Tiles, words: str = "the unit") -> None:
    """Let one unit compute tiles, in place.

    Args:
        unit: holds the parameters of all tiles; afterwards those of the held tiles, and parameters that are not cut.
        words: names the unit in errors.

    Raises:
        ValueError: the table names no linear layer of the unit, or one whose width the tiles do not divide.
    """
    columns: dict[str, TiledColumn] = {}
    for ending in (*table.columns, *table.rows):
        found = layers_named(unit, ending)
        if not found:
            raise ValueError(f"{words}: its tensor_table names {ending!r}, which is no module of it; correct the table")
        for name, found_layer in found.items():
            layer = base_of(found_layer)
            if not isinstance(layer, nn.Linear | Conv1D):
                raise ValueError(
                    f"{words}: its tensor_table names {ending!r}, and {name} is a {type(layer).__name__}; it takes nn.Linear and "
                    "Conv1D: correct the table, or set inner and hidden of training.tensor_tiles to 1"
                )
            one = Cut(ending in table.columns, isinstance(layer, Conv1D), table.parts.get(ending, 1))
            _check_widths(layer, one, tiles, f"{words}, {name}")
            tiled = (TiledColumn if one.is_column else TiledRow)(layer, one, tiles)
            if layer is found_layer:
                _replace(unit, name, tiled)
            else:
                tile_adapted(found_layer, tiled, name)
            if isinstance(tiled, TiledColumn):
                columns[name] = tiled
    for members in _groups(columns, table):
        Together(members)
    for name in dict.fromkeys(column.rpartition(".")[0] for column in columns):
        _tile_inside(unit.get_submodule(name), name, tiles)
    unit.row_tiles = tiles.rows  # type: ignore[assignment]  a record, and no module
    if tiles.rows.total > 1:
        compute_by_rows(unit, tiles.rows, words)
    for ending in table.inner_attributes:
        owner, _, attribute = ending.rpartition(".")
        for module in layers_named(unit, owner).values():
            widths = module.__dict__.setdefault("frostline_inner_widths", {})
            widths[attribute] = getattr(module, attribute)
            setattr(module, attribute, widths[attribute] * tiles.held // tiles.total)


def share_tiles(unit: nn.Module, tiles: Tiles) -> None:
    """Let a unit compute these tiles from now on, whose parameters it holds; a unit without tiles learns of row tiles alone.

    Layers in tiles of the vocabulary compute all samples. Also drops results that a failed forward may have left behind.
    """
    of_all_samples = replace(tiles, rows=WHOLE)
    unit.row_tiles = tiles.rows  # type: ignore[assignment]  a record, and no module
    for module in unit.modules():
        if isinstance(module, TiledLayer | TiledActivation | TiledDropout):
            is_of_vocabulary = isinstance(module, TiledLayer) and isinstance(module.cut, VocabularyCut)
            module.tiles = of_all_samples if is_of_vocabulary else tiles
        if isinstance(module, RowWise):
            module.row_tiles = tiles.rows
        if isinstance(module, TiledColumn):
            module.together.forget()
        if "frostline_tiles" in vars(module):
            module.frostline_tiles = tiles
        for attribute, width in vars(module).get("frostline_inner_widths", {}).items():
            setattr(module, attribute, width * tiles.held // tiles.total)


def tiled_layers(unit: nn.Module) -> dict[str, TiledLinear]:
    """The layers of a unit that compute tiles, by name; empty without tiles."""
    return {name: module for name, module in unit.named_modules() if isinstance(module, TiledLinear)}


def _tile_inside(module: nn.Module, name: str, tiles: Tiles) -> None:
    """Let a module with column layers process their outputs tile by tile: activation functions, and the attention that its config
    names."""
    for child, function in list(module.named_children()):
        if isinstance(function, ACTIVATIONS):
            setattr(module, child, TiledActivation(function, tiles))
    module.frostline_tiles, module.frostline_site = tiles, name
    if tiles.rows.total > 1:
        module.register_forward_pre_hook(_gather_samples, with_kwargs=True)
    config = getattr(module, "config", None)
    if isinstance(config, PretrainedConfig):
        module.config = copy.copy(config)
        module.config._attn_implementation = PREFIX + config._attn_implementation


def _gather_samples(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Before a module with column layers: gather all samples of its input, which is its first tensor."""
    rows = module.frostline_tiles.rows  # type: ignore[union-attr]
    if arguments:
        return (gathered(rows, arguments[0]), *arguments[1:]), named
    first = next(name for name, one in named.items() if isinstance(one, Tensor))
    return arguments, named | {first: gathered(rows, named[first])}


def _groups(columns: dict[str, TiledColumn], table: TensorTable) -> Iterator[list[TiledColumn]]:
    """Groups of column layers that read the same input, in the table's order; any other column layer is a group of its own."""
    left = dict(columns)
    for endings in table.together:
        firsts = [name for name in columns if name == endings[0] or name.endswith(f".{endings[0]}")]
        for first in firsts:
            stem = first[: len(first) - len(endings[0])]
            yield [left.pop(stem + ending) for ending in endings]
    for layer in left.values():
        yield [layer]


def _check_widths(layer: nn.Module, one: Cut, tiles: Tiles, words: str) -> None:
    shape = layer.weight.shape
    cuts = [("inner", tiles.total, shape[one.dim] // one.parts)]
    cuts += [("hidden", tiles.hidden.total, shape[1 - one.dim])] if tiles.hidden.total > 1 else []
    for field, total, width in cuts:
        if width % (total * WIDTH_OF):
            raise ValueError(
                f"{words}: training.tensor_tiles.{field} is {total} and the width that it cuts is {width}; a tile's is a "
                f"multiple of {WIDTH_OF}: lower {field}, or take a width that is a multiple of {WIDTH_OF * total}"
            )
    if tiles.hidden.total > 1 and one.parts > 1 and one.dim == 0:
        raise ValueError(
            f"{words}: training.tensor_tiles.hidden is {tiles.hidden.total} and {one.parts} matrices are packed into the rows of "
            "a weight, which hidden tiles do not cut: set hidden to 1"
        )


def _replace(unit: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(unit.get_submodule(owner), leaf, module)


def _replace_everywhere(wholes: Iterable[nn.Module | None], layer: nn.Module, module: nn.Module) -> None:
    """Put a module in the place of a layer, wherever it is named: a unit and its model name one layer, by different owners."""
    for owner in [owner for whole in wholes if whole is not None for owner in whole.modules()]:
        for name in [name for name, child in owner.named_children() if child is layer]:
            setattr(owner, name, module)
