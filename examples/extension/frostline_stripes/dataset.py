"""A generated data set: grey images of horizontal, vertical or diagonal stripes, which are the classes."""

import numpy as np

from frostline_contract.job import Job
from frostline_trainer.data.records import Images, Part
from frostline_trainer.data.split import digest_of

SAMPLES, SIZE = 600, 8
NAMES = ("across", "down", "aslant")


def read_stripes(job: Job, path: str | None, part: Part) -> Images:
    """600 noisy images of 8 x 8 pixels in three classes. Raises ValueError if a path is given."""
    if path is not None:
        raise ValueError(f"data.path or data.test_path is {path!r}; data.source stripes is made on the spot and takes neither")
    random = np.random.default_rng(20210)
    labels = np.arange(SAMPLES, dtype=np.int64) % len(NAMES)
    down, across = np.mgrid[0:SIZE, 0:SIZE]
    position = np.stack([down, across, (down + across) * 0.7])[labels]
    phase, width = random.uniform(0, 6.28, (SAMPLES, 1, 1)), random.uniform(1.2, 2.0, (SAMPLES, 1, 1))
    images = 0.5 + 0.3 * np.sin(position * width + phase) + random.normal(0, 0.1, position.shape)
    pixels = np.clip(images, 0, 1).astype(np.float32)[:, None]
    return Images(
        pixels=pixels.__getitem__,
        labels=labels,
        image_size=SIZE,
        channels=1,
        digest=digest_of("stripes", pixels.tobytes()),
        where=lambda index: f"stripes:{index}",
        label_names=NAMES,
        rescale_factor=1.0,
    )
