"""Embedding and cross entropy in tiles of the vocabulary.

A tile has a run of the vocabulary's entries: rows of the embedding's matrix, and columns of the logits. A lookup has one
contributor, so its bytes cross between ranks unchanged. The logits of a tile stay where they are computed: of each token, a rank
sends for each of its tiles the largest logit, the sum of exponentials, and the logit of the label. All ranks combine these
figures of all tiles in one order. In the backward a tile's logits get their gradient on the spot.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from frostline_trainer.data.split import IGNORED
from frostline_trainer.step.alignment import aligned
from frostline_trainer.tasks.base import loss_precision
from frostline_trainer.tensor.cut import VocabularyCut
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.linear import TiledColumn
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.tensor.tiles import Tiles, joined


class TiledEmbedding(TiledLayer):
    """An embedding whose matrix is cut by entries. padding: the entry that gets no gradient, or None."""

    cut: VocabularyCut

    def __init__(self, layer: nn.Embedding, one: VocabularyCut, tiles: Tiles) -> None:
        super().__init__(layer, one, tiles)
        self.padding = layer.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """The entries' vectors. ids: int64 [...], the same on all ranks of a group; returns [..., width]."""
        return _Lookup.apply(self.tiles, self.cut, ids, self.padding, self.computed(self.weight))


class _Lookup(torch.autograd.Function):
    """The autograd function of an embedding. The gradient of each tile is a call of its own."""

    @staticmethod
    def forward(ctx: Any, tiles: Tiles, cut: VocabularyCut, ids: Tensor, padding: int | None, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.tiles, ctx.cut, ctx.padding = tiles, cut, padding
        if tiles.join is None:
            return functional.embedding(ids, weight)
        local, is_here = _within(ids, cut.first(tiles.first), weight.shape[0])
        found = functional.embedding(local, weight)
        return tiles.only(found.masked_fill_(~is_here[..., None], 0.0))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (ids,), tiles, cut = ctx.saved_tensors, ctx.tiles, ctx.cut
        ids, rows = ids.reshape(-1), aligned(gradient.reshape(-1, gradient.shape[-1]).contiguous())
        found = []
        for tile in tiles.numbers:
            count = cut.count(range(tile, tile + 1))
            local, is_here = _within(ids, cut.first(tile), count)
            if ctx.padding is not None:
                is_here &= ids != ctx.padding
            # One entry more takes the tokens of other tiles.
            places = torch.where(is_here, local, count)
            found.append(torch.ops.aten.embedding_dense_backward(rows, places, count + 1, count, False)[:count])
        return None, None, None, None, cut.whole(found)


class TiledVocabulary:
    """Cross entropies and predictions from logits of which each rank has its tiles' (`tasks.base.Vocabulary`).

    Args:
        head: the layer that computes the logits.
    """

    def __init__(self, head: TiledColumn) -> None:
        assert isinstance(head.cut, VocabularyCut)
        self._head, self._cut = head, head.cut

    def cross_entropies(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Each item's cross entropy, 0 where ignored, in the shape of `labels`; the same on all ranks of a group.

        Args:
            logits: [..., entries of the held tiles].
            labels: int64 [...], with IGNORED for invalid items.
        """
        flat = logits.reshape(-1, logits.shape[-1])
        return _CrossEntropies.apply(self._head.tiles, self._cut, flat, labels.reshape(-1)).view(labels.shape)

    def summed_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum of `cross_entropies`."""
        return self.cross_entropies(logits, labels).sum()

    def best(self, logits: Tensor) -> Tensor:
        """The entry with the largest logit, int64 [...]; the first one of equal logits. The same on all ranks of a group."""
        tiles, flat = self._head.tiles, logits.reshape(-1, logits.shape[-1])
        tops, entries = [], []
        for first, own in _held_logits(tiles, self._cut, flat):
            top = own.max(1)
            tops.append(top.values)
            entries.append(top.indices + first)
        found, choices = tiles.collected(torch.stack(tops)), tiles.collected(torch.stack(entries))
        return choices.gather(0, found.max(0).indices[None])[0].view(logits.shape[:-1])


class _CrossEntropies(torch.autograd.Function):
    """The autograd function of cross entropies; it keeps the logits, and no probabilities."""

    @staticmethod
    def forward(ctx: Any, tiles: Tiles, cut: VocabularyCut, logits: Tensor, labels: Tensor) -> Tensor:
        figures = []
        for first, own in _held_logits(tiles, cut, logits):
            top = own.max(1).values
            local, is_here = _within(labels, first, own.shape[1])
            target = own.gather(1, local[:, None])[:, 0].masked_fill_(~is_here, 0.0)
            figures.append(torch.stack([top, (own - top[:, None]).exp_().sum(1), target]))
        tops, sums, targets = tiles.collected(torch.stack(figures)).unbind(1)
        top = tops.max(0).values
        log_sum = top + pairwise(list(sums * (tops - top).exp())).log()
        target = targets.gather(0, cut.tile_with(labels.clamp(min=0))[None])[0]
        ctx.save_for_backward(logits, labels, log_sum)
        ctx.tiles, ctx.cut = tiles, cut
        return (log_sum - target).masked_fill(labels == IGNORED, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        logits, labels, log_sum = ctx.saved_tensors
        tiles, cut = ctx.tiles, ctx.cut
        gradient, found = gradient.masked_fill(labels == IGNORED, 0.0)[:, None], []
        for first, own in _held_logits(tiles, cut, logits):
            local, is_here = _within(labels, first, own.shape[1])
            shares = (own - log_sum[:, None]).exp_()
            shares.scatter_add_(1, local[:, None], -is_here.to(shares.dtype)[:, None])
            found.append((shares * gradient).to(logits.dtype))
        return None, None, joined(found, 1, 1), None


def _held_logits(tiles: Tiles, cut: VocabularyCut, logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first entry, logits (items, entries of the tile) in at least float32) of each held tile."""
    for place, tile in enumerate(tiles.numbers):
        yield cut.first(tile), loss_precision(cut.output_tile(logits, tiles.held, place))


def _within(numbers: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """(numbers counted from `first`, moved into [0, count); whether they were in it)."""
    local = numbers - first
    return local.clamp(0, count - 1), (local >= 0) & (local < count)
