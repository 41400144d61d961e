"""The cost of tiles of inner widths and of the hidden width on one worker: a block's step with tiles over that without."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from frostline_contract.tile_grid import TileGrid
from frostline_trainer.families.gpt2 import GPT2, Block
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.install import tile_unit
from frostline_trainer.tensor.tiles import Tiles
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios

TURNS = 24
TOKENS = 128
BLOCKS = {256: (8, 4), 768: (12, 2)}
"""Width -> (heads, samples): enough rows that a matrix product takes milliseconds."""
GOALS = {256: 1.15, 768: 1.08}
GRIDS = (TileGrid(2), TileGrid(4), TileGrid(1, 2), TileGrid(2, 2), TileGrid(2, 4))
"""Those of inner tiles alone have goals."""


def tensor_tiles(effort: Effort) -> Report:
    """Measure all grids of tiles, and no tiles, in turns on one input."""
    torch.set_num_threads(1)
    rows = [row for width in BLOCKS for row in _rows(width, effort)]
    return Report(
        "Tensor tiles on one worker",
        "Forward and backward of a GPT-2 block (sdpa, float32, no dropout) whose linear layers, activations and attention heads "
        "are computed tile by tile (`training.tensor_tiles.inner`; x `hidden` where the hidden width is cut as well), over the "
        f"same block without tiles: one thread, in turns, processor time. {TOKENS} tokens a sample.",
        rows,
    )


def _rows(width: int, effort: Effort) -> list[Row]:
    heads, samples = BLOCKS[width]
    config = GPT2Config(n_embd=width, n_head=heads, n_layer=1, resid_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa")
    torch.manual_seed(0)
    plain = Block(GPT2Block(config, 0), "sdpa")
    entry, direction = torch.randn(2, samples, TOKENS, width).unbind(0)
    ways = {"whole": _pass(plain, entry, direction)}
    for grid in GRIDS:
        tiled = copy.deepcopy(plain)
        tile_unit(tiled, GPT2().tensor_table(config), Tiles(grid.inner, hidden=Hidden(grid.hidden)))
        ways[_words(grid)] = _pass(tiled, entry, direction)
    first = {name: way() for name, way in ways.items()}
    assert all(torch.allclose(one, first["whole"], rtol=1e-3, atol=1e-4) for one in first.values()), (
        "tiles compute something else"
    )
    _, processor = interleave_both(ways, effort.pairs(TURNS), warm_up=2)
    whole = milliseconds(processor["whole"])
    return [
        Row(f"width {width}, {_words(grid)} tiles, {samples * TOKENS} rows", "in tiles / whole", "x",
            Spread.of(ratios(processor[_words(grid)], processor["whole"])),
            {"in tiles ms": milliseconds(processor[_words(grid)]), "whole ms": whole},
            at_most=GOALS[width] if grid.hidden == 1 else None)
        for grid in GRIDS
    ]  # fmt: skip


def _words(grid: TileGrid) -> str:
    return f"{grid.inner}" if grid.hidden == 1 else f"{grid.inner} x {grid.hidden}"


def _pass(block: nn.Module, entry: torch.Tensor, direction: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a function that runs forward and backward, and returns the entry's gradient."""

    def once() -> torch.Tensor:
        x = entry.clone().requires_grad_()
        block(x, {}).backward(direction)
        block.zero_grad(set_to_none=True)
        assert x.grad is not None
        return x.grad

    return once
