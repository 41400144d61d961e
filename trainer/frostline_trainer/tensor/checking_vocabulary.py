"""Checks that embedding and head compute the same with and without tiles of the vocabulary, as `checking` does of a block."""

import copy

import torch
from torch import Tensor, nn

from frostline_contract.seeds import seed_of
from frostline_trainer.tasks.base import Vocabulary, WholeVocabulary
from frostline_trainer.tensor.apart import Apart, Results
from frostline_trainer.tensor.checking import Subject, compare, three_ways
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

    where = f"{words}: in {total} tiles of the vocabulary"
    whole = Tiles(total)
    compare(*three_ways(subject.unit, made(whole), Apart(whole, made), subject.computed, where, table.embedding), where)


def check_logits(unit: nn.Module, table: TensorTable, total: int, inputs: dict[str, Tensor], entry: Tensor, words: str) -> None:
    """Raise ValueError, naming the result, if the last unit's losses are not the same in tiles. Arguments as of `check_table`.

    Cross entropies count as the unit's output, since the logits of a tile leave the unit as they are.
    """
    subject = Subject(unit, inputs, entry)
    vocabularies: dict[nn.Module, Vocabulary] = {subject.unit: WholeVocabulary()}
    with torch.no_grad():
        logits = subject.unit(torch.zeros_like(entry, dtype=torch.float64), inputs)
    generator = torch.Generator().manual_seed(seed_of("labels"))
    labels = torch.randint(logits.shape[-1], logits.shape[:-1], generator=generator).to(logits.device)

    def made(tiles: Tiles) -> nn.Module:
        copied = copy.deepcopy(subject.unit)
        vocabularies[copied] = tile_logits(copied, table, tiles, words)
        return copied

    def results_of(unit: nn.Module) -> Results:
        return subject.computed(unit, loss=lambda found: vocabularies[unit].cross_entropies(found, labels))

    where = f"{words}: in {total} tiles of the vocabulary"
    whole = Tiles(total)
    compare(*three_ways(subject.unit, made(whole), Apart(whole, made), results_of, where, table.logits), where)
