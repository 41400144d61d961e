"""The oracle's grid of inner and hidden tiles is held to the whole batch's gradient, and to sums written out tile by tile."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tests.exact_cases import BLOCKS, Case, adapt
from tests.oracle.anatomy import anatomy_of
from tests.oracle.models import small_batch, small_model
from tests.oracle.plain_loop import Recipe, Trace, run_plain_loop, seed_of
from tests.oracle.ranges import layouts_of
from tests.oracle.tiles import InTiles
from tests.oracle.whole_batch import BOUNDS, accumulated_gradient, relative_gap, vanishing_gradients, whole_batch_gradient

RECIPE = Recipe(micro_batch_size=2, reduction_leaves=4, learning_rate=3e-3)
HIDDEN, WIDE = 32, 64
"""The hidden width and the feed-forward of the small models; heads are as wide as the hidden width."""
Sum = Callable[[list[Tensor]], Tensor]


@pytest.mark.parametrize("grid", [(1, 2), (2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("family", ["vit", "bert_question_answering", "gpt2_tied", "gpt2_untied", "llama", "llama_tied"])
def test_a_gradient_computed_in_hidden_tiles_is_the_whole_batch_gradient(family: str, grid: tuple[int, int]) -> None:
    batch = small_batch(family, 24, padding_rows=3, dtype=torch.float64)
    model = small_model(family, torch.float64)
    reference = whole_batch_gradient(model, batch)
    found = accumulated_gradient(small_model(family, torch.float64), batch, in_tiles(*grid))
    assert relative_gap(found, reference, vanishing_gradients(model)) <= BOUNDS[torch.float64]


def in_tiles(inner: int, hidden: int) -> Recipe:
    return replace(RECIPE, inner_tiles=inner, hidden_tiles=hidden)


def places(width: int, tiles: int, packed: int = 1) -> list[Tensor]:
    """Return the elements of a width in each tile, which has a share of each packed matrix."""
    return list(torch.arange(width).view(packed, tiles, -1).transpose(0, 1).flatten(1))


def pairs(tiles: list[Tensor]) -> Tensor:
    """Return the documented sum of four tiles."""
    a, b, c, d = tiles
    return (a + b) + (c + d)


def in_order(tiles: list[Tensor]) -> Tensor:
    return reduce(add, tiles)


def rounding(tiles: list[Tensor]) -> Tensor:
    """Return the sum by pairs, each of its additions rounded to half precision."""
    return pairs([one.bfloat16() for one in tiles]).float()


@dataclass(frozen=True)
class Layers:
    """Layers of a block that read one input. packed: matrices in a column layer's outputs."""

    family: str
    names: tuple[str, ...]
    is_column: bool
    inner: int
    packed: int = 1

    def places(self, inner: int, hidden: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return the elements of the input and of the output in each tile."""
        wide, narrow = places(self.inner * self.packed, inner, self.packed), places(HIDDEN, hidden)
        return (narrow, wide) if self.is_column else (wide, narrow)

    def by_hand(self, layers: list[nn.Module], x: Tensor, directions: list[Tensor], total: Sum) -> list[Tensor]:
        """Return the outputs, the gradient of x, and those of each weight and bias, in four by four tiles.

        total: sums four tiles in float32, where they are in half precision.
        """
        ins, outs = self.places(4, 4)

        def rounded(tiles: list[Tensor]) -> Tensor:
            return total([one.float() for one in tiles]).to(x.dtype)

        upward = torch.empty_like(x)
        outputs, of_weights, of_biases = [], [], []
        for layer, direction in zip(layers, directions, strict=True):
            output, of_weight = torch.empty_like(direction), torch.empty_like(layer.weight)
            for out in outs:
                output[:, out] = rounded([product(x[:, own], tile_of(layer, own, out), layer) for own in ins]) + layer.bias[out]
                for own in ins:
                    put_tile(of_weight, layer, own, out, weight_gradient(x[:, own], direction[:, out], layer))
            outputs.append(output)
            of_weights.append(of_weight)
            of_bias = torch.empty_like(layer.bias)
            for out in outs if self.is_column else [torch.arange(HIDDEN)]:
                of_bias[out] = direction[:, out].sum(0)
            of_biases.append(of_bias)
        for own in ins:
            shares = []
            for out in outs:
                of_layers = [entry_gradient(direction[:, out], tile_of(layer, own, out), layer).float()
                             for layer, direction in zip(layers, directions, strict=True)]  # fmt: skip
                shares.append(in_order(of_layers))
            upward[:, own] = rounded(shares)
        return [*outputs, upward, *of_weights, *of_biases]


def tile_of(layer: nn.Module, own: Tensor, out: Tensor) -> Tensor:
    """Return a tile of a weight, in the weight's layout; own, out: elements of the input and of the output."""
    rows, columns = (own, out) if isinstance(layer, Conv1D) else (out, own)
    return layer.weight.detach()[rows][:, columns].contiguous()


def put_tile(whole: Tensor, layer: nn.Module, own: Tensor, out: Tensor, tile: Tensor) -> None:
    rows, columns = (own, out) if isinstance(layer, Conv1D) else (out, own)
    whole[rows[:, None], columns] = tile


def product(x: Tensor, tile: Tensor, layer: nn.Module) -> Tensor:
    return x @ (tile if isinstance(layer, Conv1D) else tile.t())


def entry_gradient(direction: Tensor, tile: Tensor, layer: nn.Module) -> Tensor:
    return direction @ (tile.t() if isinstance(layer, Conv1D) else tile)


def weight_gradient(x: Tensor, direction: Tensor, layer: nn.Module) -> Tensor:
    return x.t() @ direction if isinstance(layer, Conv1D) else direction.t() @ x


LAYERS = {
    "query, key, value": Layers(
        "bert_classification", ("attention.self.query", "attention.self.key", "attention.self.value"), True, HIDDEN
    ),
    "dense": Layers("bert_classification", ("output.dense",), False, WIDE),
    "packed Conv1D": Layers("gpt2_untied", ("attn.c_attn",), True, HIDDEN, packed=3),
    "Conv1D": Layers("gpt2_untied", ("mlp.c_proj",), False, WIDE),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("which", LAYERS)
def test_a_layer_in_a_grid_sums_its_tiles_by_pairs_forward_and_backward(which: str, dtype: torch.dtype) -> None:
    drawn, subject = torch.Generator().manual_seed(5), LAYERS[which]
    model = small_model(subject.family, dtype, blocks=1)
    anatomy = anatomy_of(model)
    layers = [anatomy.units[1][0].get_submodule(name) for name in subject.names]
    ins, outs = subject.places(1, 1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn).to(dtype)

    for layer in layers:
        layer.bias.data = random(len(outs[0]))
    x, directions = random(24, len(ins[0])), [random(24, len(outs[0])) for _ in layers]
    other_sum = rounding if dtype == torch.bfloat16 else in_order
    documented, other = (subject.by_hand(layers, x, directions, total) for total in (pairs, other_sum))
    InTiles.of(anatomy, in_tiles(4, 4), seed_of)
    entry = x.clone().requires_grad_()
    outputs = [layer(entry) for layer in layers]
    torch.autograd.backward(outputs, directions)
    found = [*outputs, entry.grad, *(layer.weight.grad for layer in layers), *(layer.bias.grad for layer in layers)]
    assert all(map(torch.equal, found, documented))
    sums = slice(0, len(layers) + 1)
    assert not any(map(torch.equal, found[sums], other[sums])), "the sum must show, or the comparison says nothing"


@pytest.mark.parametrize("hidden", [1, 2, 4])
@pytest.mark.parametrize("family", ["bert_classification", "gpt2_tied"])
def test_a_tiles_layout_has_its_matrix_of_each_weight_and_with_hidden_tiles_no_bias(family: str, hidden: int) -> None:
    anatomy = anatomy_of(small_model(family, blocks=1))
    (block,) = anatomy.units[1]
    tiles, state = InTiles.of(anatomy, in_tiles(2, hidden), seed_of), anatomy.parameters(1)
    names = {id(parameter): name for name, parameter in block.named_parameters()}
    for parameter in state:
        parameter.data = torch.arange(parameter.numel(), dtype=torch.float32).view(parameter.shape)
    common, *layouts = layouts_of(state, tiles)
    columns = {"attention.self.query": 1, "attention.self.key": 1, "attention.self.value": 1, "intermediate.dense": 1,
               "attn.c_attn": 3, "mlp.c_fc": 1}  # fmt: skip
    cut = {f"{name}.weight" for name, layer in block.named_modules() if isinstance(layer, nn.Linear | Conv1D)}
    biases = {f"{name}.bias" for name in columns} & set(names.values()) if hidden == 1 else set()
    assert [names[id(one)] for one, _ in common] == [name for name in names.values() if name not in cut | biases]
    assert len(layouts) == 2 * hidden
    for number, layout in enumerate(layouts):
        inner_tile, hidden_tile = divmod(number, hidden)
        assert [names[id(one)] for one, _ in layout] == [name for name in names.values() if name in cut | biases]
        for parameter, of in layout:
            owner, _, kind = names[id(parameter)].rpartition(".")
            layer, packed = block.get_submodule(owner), columns.get(owner, 1)
            wide = parameter.shape[0] if kind == "bias" else parameter.numel() // HIDDEN
            own, out = places(HIDDEN, hidden)[hidden_tile], places(wide, 2, packed)[inner_tile]
            expected = parameter[out] if kind == "bias" else tile_of(layer, *((own, out) if owner in columns else (out, own)))
            assert torch.equal(of(parameter), expected)


def run(recipe: Recipe, dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> Trace:
    batches = [small_batch("gpt2_tied", 10, seed=100 + step, padding_rows=1) for step in range(2)]
    return run_plain_loop(small_model("gpt2_tied", dtype, dropout, blocks=1), batches, recipe)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_grid_has_bits_of_its_own_and_repeats_them(dtype: torch.dtype) -> None:
    grids = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1))
    weights = [torch.cat([one.flatten() for unit in run(in_tiles(*grid), dtype).weights for one in unit.values()])
               for grid in (*grids, grids[-2])]  # fmt: skip
    again = weights.pop()
    assert torch.equal(weights[grids.index(grids[-2])], again)
    assert not any(torch.equal(one, other) for place, one in enumerate(weights) for other in weights[:place])


def test_hidden_tiles_draw_the_masks_of_the_inner_tiles() -> None:
    one, same, other = (run(in_tiles(*grid), torch.float64, dropout=0.3).losses for grid in ((2, 1), (2, 4), (4, 1)))
    assert same == pytest.approx(one, rel=1e-12)
    assert other != pytest.approx(one, rel=1e-6)


def with_adapters() -> PreTrainedModel:
    model = small_model("gpt2_tied", blocks=BLOCKS)
    adapt(model, Case("gpt2_tied", adapters="all"))
    return model


@pytest.mark.parametrize("beside", [{"vocabulary_tiles": True}, {"row_tiles": 2}, {}], ids=["vocabulary", "rows", "adapters"])
def test_hidden_tiles_beside_what_they_do_not_go_with_are_refused(beside: dict[str, int]) -> None:
    model = small_model("gpt2_tied", blocks=1) if beside else with_adapters()
    with pytest.raises(ValueError, match="hidden tiles go with neither"):
        InTiles.of(anatomy_of(model), replace(in_tiles(2, 2), **beside), seed_of)
