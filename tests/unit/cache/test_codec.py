"""Codecs: bounds against full precision, the round trip's bits, independence of the tile."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline_trainer.cache.codec import CODECS, make_codec

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHAPE = (5, 24)


def activations(n: int, dtype: torch.dtype, seed: int, log_scale: float = 0.0) -> torch.Tensor:
    """Rows with an outlier channel, a token of zeros and a tiny token."""
    rows = torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10.0**log_scale
    rows[:, :, 3] *= 40.0
    rows[:, 1] = 0.0
    rows[:, 2] *= 1e-6
    return rows.clamp(-6e4, 6e4).to(dtype)


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), log_scale=st.floats(-12, 4))
def test_error_is_within_the_stated_bound(name: str, dtype: torch.dtype, seed: int, log_scale: float) -> None:
    codec = make_codec(name, SHAPE, dtype)
    rows = activations(3, dtype, seed, log_scale)
    error = (codec.round_trip(rows).double() - rows.double()).abs()
    assert bool((error <= codec.bound(rows)).all()), f"largest excess {(error - codec.bound(rows)).max()}"


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_is_encode_then_decode_in_any_tile(name: str, dtype: torch.dtype) -> None:
    codec = make_codec(name, SHAPE, dtype)
    rows = activations(9, dtype, 1)
    together = codec.round_trip(rows)
    payloads = codec.encode(rows)
    assert payloads.shape == (9, codec.payload_bytes)
    assert payloads.dtype == torch.uint8
    out = torch.empty_like(rows)
    codec.decode_into(payloads, out)
    alone = torch.cat([codec.round_trip(rows[i : i + 1]) for i in range(9)])
    assert torch.equal(out, together)
    assert torch.equal(alone, together)
    assert together.dtype == dtype


def test_none_loses_nothing_and_int8_is_a_quarter_of_float32() -> None:
    rows = activations(2, torch.float32, 5)
    assert torch.equal(make_codec("none", SHAPE, torch.float32).round_trip(rows), rows)
    sizes = {name: make_codec(name, (64, 1024), torch.float32).payload_bytes for name in CODECS}
    assert sizes == {"none": 262144, "bfloat16": 131072, "int8": 65536 + 256}


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_stay_visible(name: str, bad: float) -> None:
    codec = make_codec(name, SHAPE, torch.float32)
    rows = activations(1, torch.float32, 2)
    rows[0, 4, 7] = bad
    result = codec.round_trip(rows)
    assert not result[0, 4, 7].isfinite()
    assert bool(result[0, :4].isfinite().all())


def test_float16_extremes_do_not_become_infinite() -> None:
    rows = torch.full((1, *SHAPE), 65504.0, dtype=torch.float16)
    for name in CODECS:
        assert bool(make_codec(name, SHAPE, torch.float16).round_trip(rows).isfinite().all()), name


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="'zip'; known: bfloat16, int8, none"):
        make_codec("zip", SHAPE, torch.float32)
    with pytest.raises(ValueError, match=r"torch\.int64 cannot be cached"):
        make_codec("none", SHAPE, torch.int64)
    with pytest.raises(ValueError, match=r"rows of \(5, 24\)"):
        make_codec("int8", SHAPE, torch.float32).encode(torch.zeros(1, 24, 5))
