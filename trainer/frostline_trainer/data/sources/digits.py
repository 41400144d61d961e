"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels in ten classes, installed with the library."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from frostline_contract.job import Job
from frostline_trainer.data.records import Images, Part
from frostline_trainer.data.split import digest_of

BRIGHTEST = 16
SIDE = 8
"""Pixel values are 0..16, images SIDE pixels high and wide."""


def read_digits(job: Job, path: str | None, part: Part) -> Images:
    """All digits, resized (bilinear) to data.image_size if it is set. Raises ValueError if a path is given."""
    if path is not None:
        raise ValueError(f"data.path or data.test_path is {path!r}; data.source digits is built in and takes neither")
    raw, target = _stored()
    size = job.data.image_size or raw.shape[-1]
    pixels = (raw.astype(np.float32) / BRIGHTEST)[:, None]
    if size != raw.shape[-1]:
        pixels = _resize(pixels, size)
    return Images(
        pixels=pixels.__getitem__,
        labels=target,
        image_size=size,
        channels=1,
        digest=digest_of("digits", raw.tobytes(), size),
        where=lambda index: f"digits:{index}",
        rescale_factor=1 / BRIGHTEST,
    )


def _stored() -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [1797, 8, 8] and classes int64 [1797], from the file that scikit-learn ships.

    Importing scikit-learn itself, with scipy and pandas, would take a worker more than a second.
    """
    package = find_spec("sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if file is not None and file.exists():
        rows = np.loadtxt(file, delimiter=",", dtype=np.float64)
        images, target = rows[:, :-1].reshape(-1, SIDE, SIDE), rows[:, -1]
    else:  # another release's layout, or no scikit-learn, which then raises its own error
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images, target = bunch.images, bunch.target
    return np.ascontiguousarray(images, dtype=np.uint8), target.astype(np.int64)


def _resize(pixels: np.ndarray, size: int) -> np.ndarray:
    import torch

    return torch.nn.functional.interpolate(torch.from_numpy(pixels), size=(size, size), mode="bilinear").numpy()
