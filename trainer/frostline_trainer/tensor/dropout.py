"""Dropout in tiles: each tile draws from a seed of its own, so that its mask does not depend on which tiles a worker computes.

A stage seeds the generator for each unit (docs/protocols.md 1.4). The seed of a tile, or of a row tile, follows from that seed,
the module's name and the tile's number. Afterwards the generator's state is restored, so that later draws of the unit do not
depend on the number of tiles.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from frostline_contract.seeds import seed_of
from frostline_trainer.tensor.tiles import Tiles


def by_tile(tiles: Tiles, site: str, device: torch.device, draws: bool, compute: Callable[[int], Tensor]) -> list[Tensor]:
    """Call `compute` for each held tile, by its place among them, with the tile's seed. Other arguments as of `each_seeded`."""
    return each_seeded("tile", tiles.numbers, site, device, draws, compute)


def each_seeded(
    kind: str, numbers: range, site: str, device: torch.device, draws: bool, compute: Callable[[int], Tensor]
) -> list[Tensor]:
    """Call `compute` for each of several parts, by its place among them, with the part's seed. Returns the results.

    Args:
        kind: names what is divided into parts.
        numbers: of the parts in the run.
        site: name of the module within its unit.
        device: where random numbers are drawn.
        draws: whether they are.
    """
    if not draws:
        return [compute(place) for place in range(len(numbers))]
    generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
    seed, before = generator.initial_seed(), generator.get_state()
    found = []
    for place, number in enumerate(numbers):
        generator.manual_seed(seed_of(kind, seed, site, number))
        found.append(compute(place))
    generator.set_state(before)
    return found
