"""The shadow audit of cached values: micro-batches that are due are recomputed whole, and a sample that differs is named."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.replication.wrong_bits import CacheDiffers

SIZE = 2


class Audited:
    """A cache of which every micro-batch is due but those that begin with sample 4. reports: (sample, whether it was equal)."""

    own_tokens = None

    def __init__(self) -> None:
        self.reports: list[tuple[int, bool]] = []

    def audit_due(self, sample: int, step: int) -> bool:
        return sample != 4

    def report_audit(self, ok: bool, sample: int) -> None:
        self.reports.append((sample, ok))


class Reader(PrefixReader):
    """Computes a sample's number in every place. tiles: the sizes of those that it has computed."""

    tiles: list[int]

    def _run_tile(self, samples: Sequence[int], variants: Sequence[int], tile: list[int], out: torch.Tensor, first: int) -> Any:
        self.tiles.append(len(tile))
        return rows_of([samples[place] for place in tile])


def rows_of(samples: Sequence[int]) -> torch.Tensor:
    return torch.tensor(samples, dtype=torch.float32)[:, None, None].expand(-1, 3, 4).clone()


@pytest.fixture
def reader() -> Reader:
    stage: Any = SimpleNamespace(settings=SimpleNamespace(round_trip=None, codec_chain=()))
    context: Any = SimpleNamespace(micro_batch_size=SIZE)
    made = Reader(context, stage, SimpleNamespace(name="train"), Audited(), 3, None)
    made.tiles = []
    return made


def test_the_micro_batches_of_a_step_that_are_due_are_audited_whole(reader: Reader) -> None:
    samples = [0, 1, 4, 3, 2, 5, 6, -1, -1, -1]
    rows = rows_of(samples)
    reader.audit(samples, [0] * 10, rows, 1)
    assert reader._cache.reports == [(sample, True) for sample in (0, 1, 2, 5, 6)]
    assert reader.tiles == [2, 2, 1], "a tile for each micro-batch that is due and has samples"
    assert torch.equal(rows, rows_of(samples)), "an audit changes no bit"


def test_a_sample_that_differs_is_named_and_others_of_its_tile_are_not(reader: Reader) -> None:
    samples = [0, 1, 2, 3, 4, 5]
    rows = rows_of(samples)
    rows[3, 2, 3] += 1
    with pytest.raises(CacheDiffers, match="of the train split at boundary 3 differ from recomputed ones, step 7"):
        reader.audit(samples, [0] * 6, rows, 7)
    assert reader._cache.reports == [(0, True), (1, True), (2, True), (3, False)]
