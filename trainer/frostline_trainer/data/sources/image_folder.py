"""Images in one folder for each class, the layout of ImageNet and CIFAR exports."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from frostline_contract.job import Job
from frostline_trainer.data.decoder import UNREADABLE, Wanted, as_pixels, decode, depth_refusal, unreadable
from frostline_trainer.data.records import Images, Part
from frostline_trainer.data.sources.files import required_path
from frostline_trainer.data.split import digest_of

T = TypeVar("T")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff")

CHECKED_BYTES = 256 * 1024 * 1024
"""Trees up to this size are read completely at the start: each image is decoded, and its content is part of the digest.
For larger ones the digest covers names and sizes only, and a broken image is reported when it is decoded."""


def read_image_folder(job: Job, path: str | None, part: Part) -> Images:
    """Every image below `path`/<class>/, classes by name. Pixels are decoded on demand.

    A folder without images, or whose name begins with a dot, is no class: `.ipynb_checkpoints`, `__MACOSX`.

    Raises ValueError for a folder without classes or images, an unreadable image, and an unknown target size.
    """
    place = required_path(path, "image-folder", "a folder with one subfolder of images a class")
    folders = sorted(folder.name for folder in place.iterdir() if folder.is_dir()) if place.is_dir() else []
    classes: list[str] = []
    files: list[Path] = []
    labels: list[int] = []
    for name in folders:
        if name.startswith(".") or not (found := _images_below(place / name)):
            continue
        files += found
        labels += [len(classes)] * len(found)
        classes.append(name)
    if not files:
        raise ValueError(
            f"{place}: no images; give a folder with one subfolder of images ({', '.join(SUFFIXES[:3])}, ...) a class"
        )
    size, channels = _target(job, place)

    def wanted(index: int) -> Wanted:
        return Wanted(str(files[index]), size, channels)

    return Images(
        pixels=lambda index: as_pixels(decode(wanted(index))),
        labels=np.array(labels, dtype=np.int64),
        image_size=size,
        channels=channels,
        digest=digest_of("image-folder", _tree_digest(place, files), size, channels),
        where=lambda index: str(files[index]),
        label_names=tuple(classes),
        wanted=wanted,
    )


def _images_below(folder: Path) -> list[Path]:
    """The images of a class, in order; `._NAME`, which macOS writes into archives beside NAME, is none, and no folder is one."""
    named = (file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and not file.name.startswith("._"))
    return sorted(file for file in named if not file.is_dir())


def _target(job: Job, place: Path) -> tuple[int, int]:
    size, channels = job.data.image_size or job.model.config.get("image_size"), job.model.config.get("num_channels")
    if (size is None or channels is None) and (job.model.path or job.model.hub):
        from frostline_trainer.data.images import checkpoint_config

        config = checkpoint_config(job)
        size, channels = size or config.get("image_size"), channels or config.get("num_channels")
    if not isinstance(size, int):
        raise ValueError(f"{place}: to which size shall images be brought? set data.image_size (the model's config names none)")
    if channels not in (None, 1, 3):
        raise ValueError(f"model.config.num_channels is {channels}; data.source image-folder gives 1 (grey) or 3 (colour)")
    return size, channels or 3


def _tree_digest(place: Path, files: list[Path]) -> str:
    sizes = [_read(file, Path.stat).st_size for file in files]
    is_checked = sum(sizes) <= CHECKED_BYTES
    digest = hashlib.sha256()
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"{file.relative_to(place)}\0{size}\0".encode())
        if is_checked:
            digest.update(hashlib.sha256(_read(file, Path.read_bytes)).digest())
            _verify(file)
    return digest.hexdigest()


def _read(file: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(file)
    except OSError as error:
        raise unreadable(file, error.strerror) from error


def _verify(file: Path) -> None:
    """Check sums and decode: `verify` finds wrong bits of a PNG, and only decoding finds that a JPEG ends too early."""
    try:
        with Image.open(file) as image:
            image.verify()
        with Image.open(file) as image:
            image.draft(None, (1, 1))  # a JPEG is still read to its end, at an eighth of its size
            image.load()
            deep = depth_refusal(image)
    except UNREADABLE as error:
        raise unreadable(file, type(error).__name__) from error
    if deep:
        raise unreadable(file, deep)
