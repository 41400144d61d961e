"""What a stage has computed of one micro-batch: what it was given, and a digest of all that it made of it."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import xxhash

Digest = bytes
DIGEST_BYTES = 16
ABSENT: Digest = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class Evidence:
    """What is kept of an audited micro-batch in a stage, so that another member can compute it again.

    entry: the stage's input, or the cached boundary; None where it began with raw samples. gradient: of its output; None in
    the last stage and in one that does not learn. digest: of its output, its gradient for the stage before, and its weights'.
    """

    entry: torch.Tensor | None
    gradient: torch.Tensor | None
    digest: Digest


def digest_of(tensors: Iterable[torch.Tensor | None]) -> Digest:
    """XXH3 of the tensors' bits; None counts as nothing. It never leaves the run."""
    digest = xxhash.xxh3_128()
    for tensor in tensors:
        if tensor is not None and tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.digest()
