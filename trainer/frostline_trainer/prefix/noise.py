"""Augmentation behind the cache: noise on the boundary activation, the only randomness in each step that cached values allow.

The noise of a sample in a step follows from (seed, step, sample) alone, so it is the same on any placement, cached or not.
"""

from collections.abc import Sequence

import torch

from frostline_contract.seeds import seed_of
from frostline_trainer.step.transfer import to_device


def add_feature_noise(hidden: torch.Tensor, samples: Sequence[int], step: int, seed: int, scale: float) -> torch.Tensor:
    """Boundary activations (samples, tokens, width) plus Gaussian noise of `scale` x each sample's RMS; padding unchanged."""
    noisy = hidden.clone()
    rows = [row for row, sample in enumerate(samples) if sample >= 0]
    drawn = [_noise(hidden.shape[1:], seed_of("feature-noise", seed, step, samples[row])) for row in rows]
    noise = to_device(torch.stack(drawn), hidden.device) if drawn else ()
    for row, own in zip(rows, noise, strict=True):
        rms = hidden[row].float().square().mean().sqrt()
        noisy[row] += (scale * rms * own).to(hidden.dtype)
    return noisy


def _noise(shape: torch.Size, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
