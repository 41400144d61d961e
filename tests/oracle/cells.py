"""The plain loop over cells of tokens: each cell through the unsplit model's own layers, with lists of keys and values.

Written again from docs/protocols.md 1.21: embedding and frozen layers compute whole sequences, the others one cell after another;
backward from the last cell, each cell's gradients are an addend of their own, and the embedding's come last.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from tests.oracle.anatomy import Anatomy


class Lists:
    """The cache argument of a layer: the keys and the values of each cell so far, and the sums of their readers' gradients."""

    def __init__(self) -> None:
        self.parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        self.sums: tuple[list[Tensor], list[Tensor]] = ([], [])

    def update(self, keys: Tensor, values: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        joined = []
        for own, parts, sums in zip((keys, values), self.parts, self.sums, strict=True):
            own.register_hook(partial(_with_readers, sums, len(parts)))
            joined.append(torch.cat([*parts, own], dim=2))
            parts.append(own.detach().requires_grad_())
            sums.append(torch.zeros_like(own, dtype=torch.promote_types(own.dtype, torch.float32)))
        return joined[0], joined[1]

    def before(self, cell: int) -> Iterator[tuple[list[Tensor], int, Tensor]]:
        """Yield (sums, place, keys or values) of each earlier cell."""
        for parts, sums in zip(self.parts, self.sums, strict=True):
            yield from ((sums, place, parts[place]) for place in range(cell))


def _with_readers(sums: list[Tensor], cell: int, own: Tensor) -> Tensor:
    return (sums[cell] + own).to(own.dtype)


class CellLoop:
    """One micro-batch through the model, cell by cell. bounds: of the cells. position: where seeds read the cell."""

    def __init__(self, anatomy: Anatomy, rows: dict[str, Tensor], bounds: tuple[int, ...], freeze_point: int, mixed: bool,
                 position: dict[str, int]) -> None:  # fmt: skip
        self.model, self.units, self.rows, self.position = anatomy.model, anatomy.units, rows, position
        self.score = anatomy.score
        self.spans, self.freeze_point, self.mixed = list(pairwise(bounds)), freeze_point, mixed
        self.lists = {unit: Lists() for unit in range(max(freeze_point, 1), len(self.units) - 1)}

    def addends(self, trainable: list[nn.Parameter], count: float) -> tuple[list[list[Tensor | None]], float]:
        """Return (gradients of `trainable`, in the order in which a leaf adds them; the micro-batch's loss)."""
        whole = self._whole()
        learns = self.freeze_point == 0
        runs = [self._forward(whole, cell, learns, count) for cell in range(len(self.spans))]
        found, upward = [], torch.empty_like(whole)
        for cell in reversed(range(len(self.spans))):
            entry, loss = runs[cell]
            read = [one for lists in self.lists.values() for one in lists.before(cell)]
            wanted = [*trainable, *([entry] if learns else []), *(part for _, _, part in read)]
            gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
            found.append(list(gradients[: len(trainable)]))
            if learns:
                upward[:, slice(*self.spans[cell])] = gradients[len(trainable)]
            for (sums, place, _), gradient in zip(read, gradients[len(wanted) - len(read) :], strict=True):
                sums[place] = sums[place] + gradient
        if learns:
            found.append(list(torch.autograd.grad(whole, trainable, upward, allow_unused=True)))
        return found, sum(loss.detach().double().item() for _, loss in runs)

    def _whole(self) -> Tensor:
        """Return the output of the embedding and the frozen layers, of whole sequences."""
        self.position.pop("cell", None)
        with torch.set_grad_enabled(self.freeze_point == 0), self._types():
            ids, first = self.rows["input_ids"], self.units[0]
            hidden = first[0](ids)
            if isinstance(self.model, GPT2LMHeadModel):
                _, positions, drop = first
                hidden = drop(hidden + positions(torch.arange(ids.shape[1], device=ids.device)[None]))
            for unit in range(1, self.freeze_point):
                hidden = self._layer(unit, hidden, (0, ids.shape[1]), None)
        return hidden

    def _forward(self, whole: Tensor, cell: int, learns: bool, count: float) -> tuple[Tensor, Tensor]:
        """Return (the input of the first layer that computes cells, the cell's share of the loss)."""
        self.position["cell"] = cell
        span = self.spans[cell]
        entry = hidden = whole.detach()[:, slice(*span)].contiguous().requires_grad_(learns)
        with self._types():
            for unit, lists in self.lists.items():
                hidden = self._layer(unit, hidden, span, lists)
            norm, head = self.units[-1]
            logits = head(norm(hidden))
        scores = (logits.float() if logits.dtype == torch.bfloat16 else logits).flatten(0, 1)
        labels = self.rows["labels"][:, slice(*span)].flatten()
        return entry, self.score(scores, labels) / max(count, 1.0)

    def _layer(self, unit: int, hidden: Tensor, span: tuple[int, int], lists: Lists | None) -> Tensor:
        start, stop = span
        valid = self.rows["attention_mask"].bool()
        mask = None
        if lists is not None or valid.device.type != "cpu" or not bool(valid.all()):
            seen = torch.arange(stop)[None, :] <= torch.arange(start, stop)[:, None]
            mask = seen.to(hidden.device) & valid[:, None, None, :stop]
        positions = torch.arange(start, stop, device=hidden.device)[None]
        reported = {} if isinstance(self.model, GPT2LMHeadModel) else {
            "position_embeddings": self.model.model.rotary_emb(hidden, positions)
        }  # fmt: skip
        output = self.units[unit][0](hidden, attention_mask=mask, past_key_values=lists, **reported)
        return output[0] if isinstance(output, tuple) else output

    def _types(self) -> torch.autocast:
        return torch.autocast(self.rows["input_ids"].device.type, torch.bfloat16, enabled=self.mixed)
