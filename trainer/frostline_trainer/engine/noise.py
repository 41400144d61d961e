"""Augmentation after the cache: noise on the boundary activation, the one kind of fresh randomness that cached values allow.

The noise of a sample in a step follows from (seed, step, sample) alone, so it is the same on any placement, cached or not.
"""

from collections.abc import Sequence

import torch

from frostline_contract.seeds import seed_of


def add_feature_noise(hidden: torch.Tensor, samples: Sequence[int], step: int, seed: int, scale: float) -> torch.Tensor:
    """Boundary activations (samples, tokens, width) with Gaussian noise of `scale` x each sample's RMS; padding as is."""
    noisy = hidden.clone()
    for row, sample in enumerate(samples):
        if sample < 0:
            continue
        generator = torch.Generator().manual_seed(seed_of("feature-noise", seed, step, sample))
        noise = torch.randn(hidden.shape[1:], generator=generator).to(hidden.device)
        rms = hidden[row].float().square().mean().sqrt()
        noisy[row] += (scale * rms * noise).to(hidden.dtype)
    return noisy
