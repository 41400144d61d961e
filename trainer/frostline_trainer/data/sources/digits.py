"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels in ten classes, installed with the library."""

import numpy as np

from frostline_contract.job import Job
from frostline_trainer.data.records import Images, Part
from frostline_trainer.data.split import digest_of

BRIGHTEST = 16
"""Pixel values are 0..16."""


def read_digits(job: Job, path: str | None, part: Part) -> Images:
    """All digits; resized (bilinear) where data.image_size says so. Raises ValueError where a path is given."""
    if path is not None:
        raise ValueError(f"data.path or data.test_path is {path!r}; data.source digits is built in and takes neither")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    raw = np.ascontiguousarray(bunch.images, dtype=np.uint8)
    size = job.data.image_size or raw.shape[-1]
    pixels = (raw.astype(np.float32) / BRIGHTEST)[:, None]
    if size != raw.shape[-1]:
        pixels = _resize(pixels, size)
    return Images(
        pixels=pixels.__getitem__,
        labels=bunch.target.astype(np.int64),
        image_size=size,
        channels=1,
        digest=digest_of("digits", raw.tobytes(), size),
        where=lambda index: f"digits:{index}",
        rescale_factor=1 / BRIGHTEST,
    )


def _resize(pixels: np.ndarray, size: int) -> np.ndarray:
    import torch

    return torch.nn.functional.interpolate(torch.from_numpy(pixels), size=(size, size), mode="bilinear").numpy()
