"""The prefix revision: a digest of everything that a boundary activation depends on (docs/protocols.md 1.5 and 11.1).

Two prefixes with one revision compute the same bits for the same sample and variant; that is what lets replicas, reshapes and
other runs share cached values.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""A parameter is hashed in pieces of this many elements, so that one on a GPU never needs a whole host copy."""


def prefix_revision(
    unit_states: Iterable[Mapping[str, Tensor]],
    tile_shape: Sequence[int],
    codec_chain: Sequence[tuple[int, str]],
    preprocessing: str,
    prefix_digest: str,
) -> str:
    """Hex SHA-256 over the prefix.

    unit_states: weights and buffers of units 0 .. boundary - 1, in order; the order of names within a unit does not matter.
    tile_shape: shape of the micro-batch that the prefix is computed in. codec_chain: (boundary, codec name) of every cached
    boundary that values went through, in order. preprocessing: what was done to a sample, as text. prefix_digest: of what
    frozen units compute on this machine.
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
    """Length-prefixed, so that no two lists of fields read the same."""
    for part in (label.encode(), text.encode()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)


def _add_tensor(digest: "hashlib._Hash", tensor: Tensor) -> None:
    flat = tensor.contiguous().view(-1)
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        piece = flat[start : start + CHUNK_ELEMENTS].cpu().view(torch.uint8)
        digest.update(piece.numpy())
