"""The shadow audit of cached values: every sample that is due is recomputed, and one that differs is named."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.replication.wrong_bits import CacheDiffers

SIZE = 2


class Audited:
    """A cache of which every sample but 4 is due. reports: (sample, whether it was equal)."""

    own_tokens = None

    def __init__(self) -> None:
        self.reports: list[tuple[int, bool]] = []

    def audit_due(self, samples: Sequence[int], step: int) -> list[bool]:
        return [sample != 4 for sample in samples]

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
    made = Reader(context, stage, None, Audited(), 3, None)
    made.tiles = []
    return made


def test_all_due_samples_of_a_step_are_audited_in_tiles_of_a_micro_batch(reader: Reader) -> None:
    samples = [0, 1, 2, 3, 4, 5, 6, -1]
    rows = rows_of(samples)
    reader.audit(samples, [0] * 8, rows, 1)
    assert reader._cache.reports == [(sample, True) for sample in (0, 1, 2, 3, 5, 6)]
    assert reader.tiles == [2, 2, 2]
    assert torch.equal(rows, rows_of(samples)), "an audit changes no bit"


def test_a_sample_that_differs_is_named_and_others_of_its_tile_are_not(reader: Reader) -> None:
    samples = [0, 1, 2, 3, 4, 5]
    rows = rows_of(samples)
    rows[3, 2, 3] += 1
    with pytest.raises(CacheDiffers, match="boundary 3 differ from recomputed ones in step 7"):
        reader.audit(samples, [0] * 6, rows, 7)
    assert reader._cache.reports == [(0, True), (1, True), (2, True), (3, False)]
