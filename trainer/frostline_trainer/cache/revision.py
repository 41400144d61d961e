"""The prefix revision: a digest of everything that a boundary activation depends on (docs/protocols.md 1.5 and 11.1).

Two prefixes with the same revision compute the same bits for the same sample and variant, so that replicas, reshapes and other
runs can share cached values.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""A parameter is hashed in chunks of this many elements, so that one on a GPU never needs a whole host copy."""


def prefix_revision(
    unit_states: Iterable[Mapping[str, Tensor]],
    tile_shape: Sequence[int],
    codec_chain: Sequence[tuple[int, str]],
    preprocessing: str,
    prefix_digest: str,
) -> str:
    """The prefix revision, a hex SHA-256.

    Args:
        unit_states: Weights and buffers of units 0 .. boundary - 1, in order; the order of names within a unit does not matter.
        tile_shape: Shape of the tile in which the prefix is computed: (samples, tokens, width).
        codec_chain: (boundary, codec name) of every cached boundary that values went through, in order.
        preprocessing: How samples are preprocessed, as text.
        prefix_digest: Digest of frozen units' outputs on this machine (`prefix.prefix_probe`).
    """
    digest = hashlib.sha256()
    _add(digest, "tile", repr(tuple(int(size) for size in tile_shape)))
    _add(digest, "codecs", repr([(int(boundary), str(codec)) for boundary, codec in codec_chain]))
    _add(digest, "preprocessing", preprocessing)
    _add(digest, "probe", prefix_digest)
    for index, state in enumerate(unit_states):
        _add(digest, "unit", str(index))
        for name in sorted(state):
            tensor = state[name].detach()
            _add(digest, name, f"{tensor.dtype} {tuple(tensor.shape)}")
            _add_tensor(digest, tensor)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", label: str, text: str) -> None:
    """Add a field, length-prefixed, so that different lists of fields give different bytes."""
    for part in (label.encode(), text.encode()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)


def _add_tensor(digest: "hashlib._Hash", tensor: Tensor) -> None:
    flat = tensor.contiguous().view(-1)
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        piece = flat[start : start + CHUNK_ELEMENTS].cpu().view(torch.uint8)
        digest.update(piece.numpy())
