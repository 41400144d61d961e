"""Tiles of the vocabulary over an unsplit Hugging Face model, written again from docs/protocols.md 1.26 and ADR 18."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.oracle.anatomy import IGNORED


class Entries:
    """The runs of a vocabulary's entries: the same multiple of 8 in each of `count` tiles, and the rest in the last."""

    def __init__(self, entries: int, count: int) -> None:
        each = (entries + count - 1) // count
        while each % 8:
            each += 1
        self.bounds = [(each * tile, min(each * (tile + 1), entries)) for tile in range(count)]
        assert all(low < high for low, high in self.bounds)

    def rows(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """Return the tiles of a matrix with a row for each entry."""
        return tuple(matrix[low:high].clone() for low, high in self.bounds)

    def lookup(self, layer: nn.Embedding, ids: Tensor) -> Tensor:
        """Return the vectors of entries. The gradient of each tile comes from a lookup in that tile with a row for the rest."""
        found = functional.embedding(ids, layer.weight.detach())
        for (low, high), rows in zip(self.bounds, self.rows(layer.weight), strict=True):
            inside = (low <= ids) & (ids < high) & (ids != (-1 if layer.padding_idx is None else layer.padding_idx))
            places = torch.where(inside, ids - low, high - low)
            own = functional.embedding(places, torch.cat([rows, rows.new_zeros(1, rows.shape[1])]))
            found = torch.where(inside[..., None], own, found)
        return found

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the summed cross entropy of (rows, entries) scores.

        Its value is made of figures of each tile. Its gradient is that of the scores' sum, weighted by each entry's share of the
        exponentials less the label's.
        """
        with torch.no_grad():
            tiles = [scores[:, low:high].clone() for low, high in self.bounds]
            tops = [tile.amax(1) for tile in tiles]
            highest = torch.stack(tops).amax(0)
            level = [torch.exp(tile - top[:, None]).sum(1) * torch.exp(top - highest)
                     for tile, top in zip(tiles, tops, strict=True)]  # fmt: skip
            while len(level) > 1:
                level = [a + b for a, b in zip(level[::2], level[1::2], strict=True)]
            whole, valid = highest + torch.log(level[0]), labels != IGNORED
            label = torch.where(valid, labels, 0)[:, None]
            values = torch.where(valid, whole - scores.gather(1, label)[:, 0], 0.0)
            pulls = [torch.exp(tile - whole[:, None]) for tile in tiles]
            pull = torch.cat(pulls, 1)
            pull[valid.nonzero()[:, 0], labels[valid]] -= 1.0
        weighted = (scores * pull).sum(1)
        change = torch.where(valid, weighted, 0.0)
        return (values + (change - change.detach())).sum()
