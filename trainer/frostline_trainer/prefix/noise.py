"""Augmentation behind the cache: noise on the boundary activation, the only randomness in each step that cached values allow.

The noise of a sample in a step follows from (seed, step, sample) alone, so it is the same on any placement, cached or not.
"""

from collections.abc import Sequence

import torch

from frostline_contract.seeds import seed_of
from frostline_trainer.step.transfer import to_device


def add_feature_noise(hidden: torch.Tensor, samples: Sequence[int], step: int, seed: int, scale: float) -> torch.Tensor:
    """Boundary activations plus Gaussian noise of `scale` x each sample's RMS; padding items stay unchanged.

    Args:
        hidden: (samples, tokens, width); it is not changed.
        samples: sample numbers, one for each row; below 0: a padding item.
        step, seed: the noise depends on them and on the sample's number alone.
        scale: standard deviation of the noise over the RMS.
    """
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
