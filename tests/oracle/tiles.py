"""Tiles of the blocks' widths over an unsplit Hugging Face model, written again from docs/protocols.md 1.23 and ADR 18.

The module is plain differentiable torch, without a backward of its own: sums in the trainer's backward are forks here
(`tests.oracle.forks`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.pytorch_utils import Conv1D

from tests.oracle.anatomy import CAUSAL, Anatomy
from tests.oracle.forks import apart, apart_backward, entries_of, forks_of, summed, times, under_autocast
from tests.oracle.vocabulary import Entries

NAME = "oracle_in_tiles"
SEED = Callable[..., int]


@dataclass(frozen=True)
class Plan:
    """The blocks of a family.

    attention: the module that calls the attention function. first, second: (owner, its columns that read one input, activation or
    "", owner of the row, the row) of attention and feed-forward. packed: matrices in the first columns.
    """

    attention: str
    first: tuple[str, tuple[str, ...], str]
    first_row: str
    second: tuple[str, tuple[str, ...], str]
    second_row: str
    packed: int = 1


PLANS = {
    "vit": Plan("attention", ("attention", ("q_proj", "k_proj", "v_proj"), ""), "attention.o_proj",
                ("mlp", ("fc1",), "activation_fn"), "mlp.fc2"),
    "bert": Plan("attention.self", ("attention.self", ("query", "key", "value"), ""), "attention.output.dense",
                 ("intermediate", ("dense",), "intermediate_act_fn"), "output.dense"),
    "gpt2": Plan("attn", ("attn", ("c_attn",), ""), "attn.c_proj", ("mlp", ("c_fc",), "act"), "mlp.c_proj", packed=3),
    "llama": Plan("self_attn", ("self_attn", ("q_proj", "k_proj", "v_proj"), ""), "self_attn.o_proj",
                  ("mlp", ("gate_proj", "up_proj"), "act_fn"), "mlp.down_proj"),
}  # fmt: skip


class InTiles:
    """The blocks of a model computed in a grid of `inner` x `hidden` tiles, until `remove`; with `vocabulary` its embedding and
    logits in `inner` tiles too.

    A matrix has `total` tiles, number i * hidden + j at inner tile i and hidden tile j. rows: row tiles, in which whatever of a
    block is not in tiles is computed. Hidden tiles go with neither row tiles, nor the vocabulary, nor adapters. parts: ids of the
    parameters that are cut, each with a function that gives a tensor of its shape tile by tile.
    """

    @classmethod
    def of(cls, anatomy: Anatomy, recipe: Any, seed_of: SEED) -> "InTiles | None":
        """Return the tiles that a recipe asks for; None where it asks for none."""
        grid = recipe.inner_tiles, recipe.hidden_tiles
        return None if grid == (1, 1) else cls(anatomy, *grid, seed_of, recipe.vocabulary_tiles, recipe.row_tiles)

    def __init__(self, anatomy: Anatomy, inner: int, hidden: int, seed_of: SEED, vocabulary: bool = False, rows: int = 1) -> None:
        if hidden > 1 and (vocabulary or rows > 1 or any(_below(one) is not one for one in anatomy.model.modules())):
            raise ValueError("hidden tiles go with neither tiles of the vocabulary, nor row tiles, nor adapters")
        self.inner, self.hidden, self.total, self.rows, self._seed_of = inner, hidden, inner * hidden, rows, seed_of
        self.parts: dict[int, Callable[[Tensor], tuple[Tensor, ...]]] = {}
        self._changed: list[tuple[nn.Module, str]] = []
        self._configs: list[tuple[nn.Module, object]] = []
        plan = PLANS[anatomy.model.config.model_type]
        AttentionInterface.register(NAME, self._attend)
        for (block,) in anatomy.units[1:-1]:
            self._block(block, plan)
        if vocabulary:
            self._vocabulary(anatomy)

    def remove(self) -> None:
        for module, name in self._changed:
            delattr(module, name)
        for module, config in self._configs:
            module.config = config

    def _block(self, block: nn.Module, plan: Plan) -> None:
        for (owner, columns, activation), packed in ((plan.first, plan.packed), (plan.second, 1)):
            module = block.get_submodule(owner)
            layers = [getattr(module, name) for name in columns]
            self._columns([_below(layer) for layer in layers], packed)
            for layer in layers:
                if _below(layer) is not layer:  # with an adapter, whose second matrix is cut by rows
                    self._columns([layer.lora_B["default"]], packed)
            if activation:
                self._elementwise(getattr(module, activation))
        for row in (plan.first_row, plan.second_row):
            layer = block.get_submodule(row)
            self._row(_below(layer))
            if _below(layer) is not layer:
                self._row(layer.lora_A["default"])
                self._dropout(layer.lora_dropout["default"], f"layer.{row}")
        attention = block.get_submodule(plan.attention)
        self._configs.append((attention, attention.config))
        config = type(attention.config).from_dict(attention.config.to_dict())
        config._attn_implementation = NAME
        attention.config, attention.oracle_site = config, f"layer.{plan.attention}"
        self._changed.append((attention, "oracle_site"))
        if self.rows > 1:
            for name, module in block.named_modules():
                own = next(module.parameters(recurse=False), None)
                in_tiles = any((module, "forward") == one for one in self._changed)
                if not in_tiles and (own is not None or isinstance(module, nn.Dropout)):
                    self._by_rows(module, f"layer.{name}")

    def _by_rows(self, module: nn.Module, site: str) -> None:
        """Compute a norm or a dropout row tile by row tile."""
        inner = module.forward

        def forward(x: Tensor) -> Tensor:
            if len(x) % self.rows:
                return inner(x)
            forks = {name: forks_of(one, self.rows) for name, one in module.named_parameters(recurse=False)}
            whole, seed, state = dict(module._parameters), torch.initial_seed(), torch.get_rng_state()
            draws, found = isinstance(module, nn.Dropout) and module.training, []
            for row, samples in enumerate(x.chunk(self.rows)):
                if draws:
                    torch.manual_seed(self._seed_of("row tile", seed, site, row))
                module._parameters.update({name: copies[row] for name, copies in forks.items()})
                found.append(inner(samples))
            module._parameters.update(whole)
            if draws:
                torch.set_rng_state(state)
            return torch.cat(found)

        self._forward(module, forward)

    def _vocabulary(self, anatomy: Anatomy) -> None:
        (embedding,) = (one for module in anatomy.units[0] for one in module.modules() if isinstance(one, nn.Embedding) and
                        one.weight.shape[0] == anatomy.model.config.vocab_size)  # fmt: skip
        entries = Entries(embedding.weight.shape[0], self.inner)
        self.parts[id(embedding.weight)] = entries.rows
        self._forward(embedding, lambda ids: entries.lookup(embedding, ids))
        if not isinstance(anatomy.model, CAUSAL):
            return
        head = anatomy.units[-1][-1]
        self.parts[id(head.weight)] = entries.rows

        def logits(x: Tensor) -> Tensor:
            typed = under_autocast(x)
            inputs, tiles = entries_of(typed, [head], self.inner)[head], entries.rows(under_autocast(head.weight))
            found = [apart_backward(times(entry, tile, head)) for entry, tile in zip(inputs, tiles, strict=True)]
            return torch.cat(found, 1).view(*x.shape[:-1], -1)

        self._forward(head, logits)
        anatomy.score = entries.loss

    def _columns(self, layers: list[nn.Module], packed: int) -> None:
        shared: dict[str, object] = {"x": None, "forks": {}}
        for layer in layers:
            self._cut(layer, packed, is_column=True)

        def forward(layer: nn.Module, x: Tensor) -> Tensor:
            if shared["x"] is not x:
                shared["x"], shared["forks"] = x, self._entries(under_autocast(x), layers)
            tiles = self.parts[id(layer.weight)](under_autocast(layer.weight))
            products = [times(entry, tile, layer) for entry, tile in zip(shared["forks"][layer], tiles, strict=True)]
            outputs = [summed(products[first : first + self.hidden]) for first in range(0, self.total, self.hidden)]
            if layer.bias is not None:
                biases = self._shares(under_autocast(layer.bias), packed)
                outputs = [one + bias for one, bias in zip(outputs, biases, strict=True)]
            side = [apart_backward(one).view(len(one), packed, -1) for one in outputs]
            return torch.stack(side, 2).view(*x.shape[:-1], -1)

        for layer in layers:
            self._forward(layer, lambda x, layer=layer: forward(layer, x))

    def _entries(self, x: Tensor, layers: list[nn.Module]) -> dict[nn.Module, list[Tensor]]:
        """Return the inputs of column layers by tile: each hidden tile's columns of x, which have a gradient of their own."""
        columns = x.reshape(-1, self.hidden, x.shape[-1] // self.hidden).unbind(1)
        found = [entries_of(one.contiguous(), layers, self.inner) for one in columns]
        return {layer: [entries[layer][i] for i in range(self.inner) for entries in found] for layer in layers}

    def _row(self, layer: nn.Module) -> None:
        self._cut(layer, 1, is_column=False)

        def forward(x: Tensor) -> Tensor:
            typed = under_autocast(x)
            columns = typed.reshape(-1, self.inner, x.shape[-1] // self.inner).unbind(1)
            entries = [one for column in columns for one in forks_of(column.contiguous(), self.hidden)]
            tiles = self.parts[id(layer.weight)](under_autocast(layer.weight))
            products = [times(entry, tile, layer) for entry, tile in zip(entries, tiles, strict=True)]
            total = torch.cat([apart_backward(summed(products[j :: self.hidden])) for j in range(self.hidden)], 1)
            if layer.bias is not None:
                rows = self.rows if len(x) % self.rows == 0 else 1
                biases = forks_of(layer.bias, rows)
                total = torch.cat([one + under_autocast(bias) for one, bias in zip(total.chunk(rows), biases, strict=True)])
            return total.view(*x.shape[:-1], -1)

        self._forward(layer, forward)

    def _dropout(self, module: nn.Module, site: str) -> None:
        """Let a dropout of the inner width draw each tile's mask from the tile's seed."""
        if not isinstance(module, nn.Dropout):
            return
        inner = module.forward

        def forward(x: Tensor) -> Tensor:
            if not module.training:
                return x
            seed, state, found = torch.initial_seed(), torch.get_rng_state(), []
            for tile, one in enumerate(x.chunk(self.inner, -1)):
                torch.manual_seed(self._seed_of("tile", seed, site, tile))
                found.append(inner(one.contiguous()))
            torch.set_rng_state(state)
            return torch.cat(found, -1)

        self._forward(module, forward)

    def _elementwise(self, function: nn.Module) -> None:
        inner = function.forward

        def forward(x: Tensor) -> Tensor:
            tiles = x.reshape(*x.shape[:-1], self.inner, -1).unbind(-2)
            return torch.stack([apart_backward(inner(one.contiguous())) for one in tiles], -2).view(x.shape)

        self._forward(function, forward)

    def _attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0,
                **more: object) -> tuple[Tensor, None]:  # fmt: skip
        plain, seed, state = ALL_ATTENTION_FUNCTIONS["sdpa"], torch.initial_seed(), torch.get_rng_state()
        by_tile = [one.unflatten(1, (self.inner, -1)).unbind(1) for one in (query, key, value)]
        outputs = []
        for tile in range(self.inner):
            if dropout > 0:
                torch.manual_seed(self._seed_of("tile", seed, module.oracle_site, tile))
            heads = [one[tile].contiguous() for one in by_tile]
            outputs.append(apart_backward(plain(module, *heads, mask, dropout=dropout, **more)[0]))
        if dropout > 0:
            torch.set_rng_state(state)
        return torch.stack(outputs, 2).flatten(2, 3), None

    def _cut(self, layer: nn.Module, packed: int, is_column: bool) -> None:
        hidden_dim = int(is_column != isinstance(layer, Conv1D))

        def of_weight(weight: Tensor) -> tuple[Tensor, ...]:
            if hidden_dim == 1:
                shares = weight.view(packed, self.inner, -1, weight.shape[1]).unbind(1)
                inner = [one.reshape(-1, weight.shape[1]) for one in shares]
            else:
                shares = weight.view(weight.shape[0], packed, self.inner, -1).unbind(2)
                inner = [one.reshape(weight.shape[0], -1) for one in shares]
            return tuple(apart(tile) for one in inner for tile in one.chunk(self.hidden, hidden_dim))

        self.parts[id(layer.weight)] = of_weight
        if is_column and layer.bias is not None and self.hidden == 1:
            self.parts[id(layer.bias)] = lambda bias: self._shares(bias, packed)

    def _shares(self, bias: Tensor, packed: int) -> tuple[Tensor, ...]:
        """Return each inner tile's share of a column layer's bias."""
        return tuple(one.reshape(-1) for one in bias.view(packed, self.inner, -1).unbind(1))

    def _forward(self, module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
        module.forward = forward
        self._changed.append((module, "forward"))


def _below(layer: nn.Module) -> nn.Module:
    """Return the layer below an adapter, or the layer itself."""
    return getattr(layer, "base_layer", layer)
