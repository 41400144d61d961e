"""Values of texts: as long as their own samples, in the store, on the wire and in memory that rows of one length share."""

import numpy as np
import pytest
import torch
from cache_stack import PATIENT_SECONDS, CacheStack, identity

from frostline_contract.cache_identity import HEADER, shard_of
from frostline_trainer.cache.boundary_cache import BoundaryCache


def random_rows(samples: list[int], shape: tuple[int, int] = (8, 16)) -> torch.Tensor:
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in samples])


def store(cache: BoundaryCache, samples: list[int], rows: torch.Tensor) -> None:
    cache.fill(samples, [0] * len(samples), rows)
    assert cache.flush(PATIENT_SECONDS), "fills did not leave"


LENGTHS = np.array([8, 1, 3, 8, 5, 2])


@pytest.mark.parametrize(("codec", "token_bytes"), [("none", 64), ("bfloat16", 32), ("int8", 20)])
@pytest.mark.parametrize("ahead", [False, True], ids=["read", "prefetched"])
def test_a_value_is_as_long_as_its_own_sample(stack: CacheStack, codec: str, token_bytes: int, ahead: bool) -> None:
    cache = stack.connect(own_tokens=LENGTHS, codec=codec)
    name = identity(f"own-{codec}-{ahead}")
    stack.ready(cache, name, values=6)
    samples = [4, 1, 0, 5, 2]
    rows = random_rows(samples)
    for row, sample in zip(rows, samples, strict=True):
        row[LENGTHS[sample] :] = 0.0
    store(cache, samples, rows + torch.where(rows == 0.0, 9.0, 0.0))  # whatever the padding held
    if ahead:
        cache.prefetch(samples, [0] * 5)
        read = cache.take(samples, [0] * 5, torch.device("cpu"))
    else:
        read = torch.full((5, 8, 16), 7.0)
        assert cache.read(samples, [0] * 5, read) == [True] * 5
    assert torch.equal(read, cache.codec.round_trip(rows))
    counts = cache.take_counts()
    assert counts.bytes_written == counts.bytes_read == LENGTHS[samples].sum() * token_bytes + 5 * HEADER.size


def test_only_long_samples_travel_in_chunks(stack: CacheStack) -> None:
    cache = stack.connect(shape=(512, 768), own_tokens=np.array([512, 100]))
    name = identity("own-chunks")
    stack.ready(cache, name, values=2)
    rows = random_rows([0, 1], (512, 768))
    store(cache, [0, 1], rows)
    keys = [[name.key(sample, 0, chunk) for chunk in range(4)] for sample in (0, 1)]
    assert [[stack.redis(shard_of(key, 2)).exists(key) for key in own] for own in keys] == [[1, 1, 1, 1], [1, 0, 0, 0]]
    out = torch.empty_like(rows)
    assert cache.read([0, 1], [0, 0], out) == [True, True]
    assert torch.equal(out[0], rows[0]) and torch.equal(out[1, :100], rows[1, :100]) and not out[1, 100:].any()
