"""Augmentation of training images: the job declares how images vary between epochs; other randomness is refused."""

import random
from dataclasses import dataclass

import numpy as np

from frostline_contract.job import Job
from frostline_contract.seeds import seed_of


@dataclass(frozen=True)
class Augmentation:
    """Random shift and mirror of an image; a variant depends on (seed, sample, variant) only."""

    seed: int
    shift_pixels: int
    horizontal_flip: bool

    def apply(self, image: np.ndarray, sample: int, variant: int) -> np.ndarray:
        """One variant of `image`, float32 [channels, height, width]; pixels shifted in are 0, as outside the image."""
        draw = random.Random(seed_of("augment", self.seed, sample, variant))
        down = draw.randint(-self.shift_pixels, self.shift_pixels)
        right = draw.randint(-self.shift_pixels, self.shift_pixels)
        mirrored = self.horizontal_flip and draw.random() < 0.5
        shifted = _shift(image, down, right) if self.shift_pixels else image
        return shifted[:, :, ::-1] if mirrored else shifted


def _shift(image: np.ndarray, down: int, right: int) -> np.ndarray:
    _, height, width = image.shape
    shifted = np.zeros_like(image)
    shifted[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
        :, max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return shifted


def augmentation_of(job: Job) -> Augmentation | None:
    """The job's image augmentation, or None if samples never vary."""
    section = job.data.augmentation
    if section.shift_pixels == 0 and not section.horizontal_flip:
        return None
    return Augmentation(job.seed, section.shift_pixels, section.horizontal_flip)


def check_augmentation(job: Job) -> None:
    """Raise ValueError if the section contradicts itself: randomness that no mode declares, or a mode without any."""
    section = job.data.augmentation
    asked = [f"shift_pixels {section.shift_pixels}"] if section.shift_pixels else []
    asked += ["horizontal_flip"] if section.horizontal_flip else []
    name = "data.augmentation"
    if asked and section.mode == "off":
        raise ValueError(
            f"{name}: {' and '.join(asked)} with mode off is undeclared randomness; set mode to k-variants (recommended), "
            "deterministic or recompute, or remove it"
        )
    if asked and job.task.kind != "image_classification":
        raise ValueError(f"{name}: {' and '.join(asked)} is for images, task.kind is {job.task.kind}; remove it")
    if section.mode in ("deterministic", "k-variants", "recompute") and not asked:
        raise ValueError(f"{name}: mode {section.mode} with nothing to vary; set shift_pixels or horizontal_flip, or mode off")
    if (section.mode == "pointwise-feature") != (section.feature_noise > 0):
        raise ValueError(
            f"{name}: mode {section.mode} with feature_noise {section.feature_noise}; noise belongs to mode pointwise-feature, "
            "and that mode needs feature_noise > 0"
        )


def cache_refusal(job: Job) -> str | None:
    """Why activations of this job cannot be cached, with a remedy; None if they can."""
    try:
        check_augmentation(job)
    except ValueError as error:
        return f"the cache is refused: {error}"
    if job.data.augmentation.mode == "recompute":
        return (
            "the cache is refused: data.augmentation.mode recompute draws anew each step, so no activation comes back; "
            "set mode to k-variants (variants 4 recovers nearly all of its accuracy), deterministic or off"
        )
    return None


def augmentation_note(job: Job) -> str:
    """How samples vary between epochs, in words."""
    section = job.data.augmentation
    what = [f"shift by up to {section.shift_pixels} px"] if section.shift_pixels else []
    what += ["mirror"] if section.horizontal_flip else []
    how = {
        "off": "none",
        "deterministic": "one pinned augmentation a sample",
        "k-variants": f"{section.variants} pinned variants a sample, chosen anew each step",
        "pointwise-feature": f"noise of {section.feature_noise} x RMS on the boundary activation, after the cache",
        "recompute": "fresh randomness each step, no cache",
    }[section.mode]
    return f"{how} ({', '.join(what)})" if what else how
