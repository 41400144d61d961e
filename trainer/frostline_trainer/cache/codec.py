"""Codecs: a boundary activation is stored as its own bytes, or in fewer bytes with a stated error bound.

A lossy codec is part of the function that the run computes (docs/protocols.md 1.6): a fresh activation goes through `round_trip`,
whose bits equal those of encode followed by decode. Every codec works on each token separately, elementwise in IEEE arithmetic,
so that a value has the same bits in every tile. It stores tokens in order, so that a sample's first tokens are its payload's
first bytes. A token whose bytes are all 0 decodes to zeros. All methods run on the device of their input.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
SCALE_BYTES = 4


class Codec(ABC):
    """One way of storing rows of shape (tokens, width).

    Args:
        value_shape: (tokens, width) of one sample's boundary activation.
        dtype: the compute type.

    Raises:
        ValueError: rows of this shape or type cannot be cached.
    """

    name: str
    stored_dtype: str
    payload_bytes: int

    def __init__(self, value_shape: tuple[int, int], dtype: torch.dtype) -> None:
        if dtype not in DTYPE_NAMES:
            raise ValueError(f"boundary activations of {dtype} cannot be cached; known: {', '.join(DTYPE_NAMES.values())}")
        if len(value_shape) != 2 or min(value_shape) < 1:
            raise ValueError(f"a boundary activation has shape (tokens, width), got {tuple(value_shape)}")
        self.value_shape = (int(value_shape[0]), int(value_shape[1]))
        self.dtype = dtype

    @property
    def token_bytes(self) -> int:
        """Payload bytes of one token."""
        return self.payload_bytes // self.value_shape[0]

    @abstractmethod
    def encode(self, rows: Tensor) -> Tensor:
        """(n, tokens, width) of the compute type -> (n, payload_bytes) uint8."""

    @abstractmethod
    def decode(self, payloads: Tensor) -> Tensor:
        """(n, payload_bytes) uint8 -> (n, tokens, width) of the compute type."""

    @abstractmethod
    def bound(self, rows: Tensor) -> Tensor:
        """Largest |round_trip(rows) - rows| that the codec allows, elementwise, float64.

        For finite rows with magnitudes up to 3e38.
        """

    def decode_into(self, payloads: Tensor, out: Tensor) -> None:
        """Decode (n, payload_bytes) uint8 into out (n, tokens, width)."""
        out.copy_(self.decode(payloads))

    def round_trip(self, rows: Tensor) -> Tensor:
        """decode(encode(rows)), to the bit: the activations with which the run goes on."""
        return self.decode(self.encode(rows)).view(rows.shape)

    def _checked(self, rows: Tensor) -> Tensor:
        if tuple(rows.shape[1:]) != self.value_shape or rows.dtype != self.dtype:
            raise ValueError(
                f"codec {self.name} is for rows of {self.value_shape} {self.dtype}, got {tuple(rows.shape)} {rows.dtype}"
            )
        return rows.detach().contiguous()


class RawBytes(Codec):
    """The compute type's own bytes, without loss."""

    name = "none"

    def __init__(self, value_shape: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__(value_shape, dtype)
        self.stored_dtype = DTYPE_NAMES[dtype]
        self.payload_bytes = value_shape[0] * value_shape[1] * dtype.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        return as_bytes(self._checked(rows))

    def decode(self, payloads: Tensor) -> Tensor:
        return payloads.contiguous().view(self.dtype).view(-1, *self.value_shape)

    def round_trip(self, rows: Tensor) -> Tensor:
        return rows

    def bound(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows, dtype=torch.float64)


class Bfloat16(Codec):
    """bfloat16, rounded to nearest even: relative error at most 2^-8 (8 bits of significand, with denormals below 2^-126)."""

    name = "bfloat16"
    stored_dtype = "bfloat16"

    def __init__(self, value_shape: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__(value_shape, dtype)
        self.payload_bytes = value_shape[0] * value_shape[1] * 2

    def encode(self, rows: Tensor) -> Tensor:
        # float64 is rounded to float32 first, explicitly, so that all devices make the same two roundings.
        return as_bytes(self._checked(rows).to(torch.float32).to(torch.bfloat16))

    def decode(self, payloads: Tensor) -> Tensor:
        rows = payloads.contiguous().view(torch.bfloat16).view(-1, *self.value_shape)
        if self.dtype == torch.float16:
            # bfloat16 rounds 65504 up to 65536, which float16 would make an infinity.
            finite = rows.float().clamp(-65504.0, 65504.0)
            return torch.where(rows.isfinite(), finite, rows.float()).to(self.dtype)
        return rows.to(self.dtype)

    def bound(self, rows: Tensor) -> Tensor:
        return rows.double().abs() * 2.0**-8 + 2.0**-133 + (2.0**-24 if self.dtype == torch.float16 else 0.0)


class Int8PerToken(Codec):
    """Symmetric 8-bit integers with one float32 scale a token: largest magnitude / 127.

    Payload: of each token its float32 scale and width x int8. A token with a non-finite element decodes to non-finite
    elements throughout, so that the step's non-finite check still sees it.
    """

    name = "int8"
    stored_dtype = "int8"

    def __init__(self, value_shape: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__(value_shape, dtype)
        self.payload_bytes = value_shape[0] * (SCALE_BYTES + value_shape[1])

    def encode(self, rows: Tensor) -> Tensor:
        exact = self._checked(rows).to(torch.float32)
        scale = exact.abs().amax(dim=2, keepdim=True) / 127.0
        # A scale of zero stands for a token of zeros (or of magnitudes below 127 x the least denormal).
        divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
        steps = torch.nan_to_num(exact / divisor, nan=0.0, posinf=127.0, neginf=-127.0).round().clamp(-127, 127).to(torch.int8)
        scale = torch.where(scale.isfinite(), scale, torch.full_like(scale, torch.nan))
        return as_bytes(torch.cat([scale.view(torch.uint8), steps.view(torch.uint8)], dim=2))

    def decode(self, payloads: Tensor) -> Tensor:
        tokens = payloads.view(-1, self.value_shape[0], self.token_bytes)
        scale = tokens[..., :SCALE_BYTES].contiguous().view(torch.float32)
        steps = tokens[..., SCALE_BYTES:].view(torch.int8)
        return (steps.to(torch.float32) * scale).to(self.dtype)

    def bound(self, rows: Tensor) -> Tensor:
        largest = rows.double().abs().amax(dim=2, keepdim=True)
        rounding = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(self.dtype, 2.0**-24)
        floor = 2.0**-24 if self.dtype == torch.float16 else 2.0**-133
        return (largest * (0.5 / 127.0 + 2.0**-20 + rounding) + floor * 64).expand_as(rows)


CODECS: dict[str, Callable[[tuple[int, int], torch.dtype], Codec]] = {
    codec.name: codec for codec in (RawBytes, Bfloat16, Int8PerToken)
}


def make_codec(name: str, value_shape: tuple[int, int], dtype: torch.dtype) -> Codec:
    """The codec of a job's `cache.codec`. Raises ValueError with the known names."""
    if name not in CODECS:
        raise ValueError(f"cache.codec is {name!r}; known: {', '.join(sorted(CODECS))}")
    return CODECS[name](value_shape, dtype)


def as_bytes(rows: Tensor) -> Tensor:
    """The memory of contiguous rows (n, ...) as (n, bytes) uint8, sharing it."""
    return rows.view(rows.shape[0], -1).view(torch.uint8)
