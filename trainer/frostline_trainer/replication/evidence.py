"""Evidence of a stage's computation on one micro-batch: its inputs, and a digest of all its results."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import xxhash

Digest = bytes
DIGEST_BYTES = 16
ABSENT: Digest = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class Evidence:
    """The evidence of an audited micro-batch in a stage, from which another member can recompute it.

    entry: the stage's input, or the cached boundary; None for raw samples. gradient: of its output; None in the last stage and in
    one that does not learn. digest: of its output, its input's gradient and its weights' gradients.
    """

    entry: torch.Tensor | None
    gradient: torch.Tensor | None
    digest: Digest


def digest_of(tensors: Iterable[torch.Tensor | None]) -> Digest:
    """XXH3 of the tensors' bits, without those that are None. For use within the run only."""
    digest = xxhash.xxh3_128()
    for tensor in tensors:
        if tensor is not None and tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.digest()
