"""Checks that embedding and head compute the same with and without tiles of the vocabulary, as `checking` does of a block."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from frostline_contract.seeds import seed_of
from frostline_trainer.tasks.base import WholeVocabulary
from frostline_trainer.tensor.apart import Apart
from frostline_trainer.tensor.checking import Subject, compare
from frostline_trainer.tensor.install import tile_embedding, tile_logits
from frostline_trainer.tensor.table import TensorTable
from frostline_trainer.tensor.tiles import Tiles


def check_embedding(
    unit: nn.Module, table: TensorTable, total: int, inputs: dict[str, Tensor], entry: Tensor, words: str
) -> None:
    """Raise ValueError, naming the result, if the first unit computes otherwise in tiles. Arguments as of `check_table`."""
    subject = Subject(unit, inputs, entry)

    def made(tiles: Tiles) -> nn.Module:
        copied = copy.deepcopy(subject.unit)
        tile_embedding(copied, table, tiles, words)
        return copied

    whole, tiles = subject.computed(subject.unit), subject.computed(made(Tiles(total)))
    compare(whole, tiles, Apart(total, made).computed(subject.computed), f"{words}: in {total} tiles")


def check_logits(unit: nn.Module, table: TensorTable, total: int, inputs: dict[str, Tensor], entry: Tensor, words: str) -> None:
    """Raise ValueError, naming the result, if the last unit's losses are not the same in tiles. Arguments as of `check_table`.

    Cross entropies count as the unit's output, since the logits of a tile leave the unit as they are.
    """
    subject, losses = Subject(unit, inputs, entry), dict[nn.Module, Callable[[Tensor], Tensor]]()
    with torch.no_grad():
        logits = subject.unit(torch.zeros_like(entry, dtype=torch.float64), inputs)
    generator = torch.Generator().manual_seed(seed_of("labels"))
    labels = torch.randint(logits.shape[-1], logits.shape[:-1], generator=generator).to(logits.device)

    def made(tiles: Tiles) -> nn.Module:
        copied = copy.deepcopy(subject.unit)
        vocabulary = tile_logits(copied, table, tiles, words)
        losses[copied] = lambda found: vocabulary.cross_entropies(found, labels)
        return copied

    together = made(Tiles(total))
    whole = subject.computed(subject.unit, loss=lambda found: WholeVocabulary().cross_entropies(found, labels))
    tiles = subject.computed(together, loss=losses[together])
    apart = Apart(total, made).computed(lambda unit: subject.computed(unit, loss=losses[unit]))
    compare(whole, tiles, apart, f"{words}: in {total} tiles of the vocabulary")
