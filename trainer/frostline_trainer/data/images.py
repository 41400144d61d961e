"""Labelled images as a split: pixels in, class numbers out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frostline_contract.job import Job
from frostline_trainer.data.augment import Augmentation, augmentation_note, augmentation_of
from frostline_trainer.data.partition import partition
from frostline_trainer.data.records import Images, resolve_labels
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import IGNORED, SampleNames, TaskData, digest_of


@dataclass(frozen=True)
class ImagePreprocessing:
    """The normalisation of an image: (raw * rescale_factor - mean) / std, by channel.

    It is saved beside the model in the form that transformers' image processors read.
    """

    image_size: int
    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def save_pretrained(self, directory: str) -> list[str]:
        """Write preprocessor_config.json; returns its path."""
        size = {"height": self.image_size, "width": self.image_size}
        content = {
            "image_processor_type": "ViTImageProcessor",
            "do_convert_rgb": len(self.mean) == 3,
            "do_resize": True,
            "size": size,
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": self.rescale_factor,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        file = Path(directory) / "preprocessor_config.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return [str(file)]


class ImageSplit:
    """A split of images. Inputs: pixel_values float32 [n, channels, size, size], labels int64 [n].

    Args:
        name: "train", "guard" or "test".
        records: the data set.
        numbers: the record of each sample.
        preprocessing: scaling and normalisation.
        augmentation: how variants differ; None: there is one variant.
    """

    def __init__(
        self,
        name: str,
        records: Images,
        numbers: np.ndarray,
        preprocessing: ImagePreprocessing,
        augmentation: Augmentation | None,
    ) -> None:
        self.name = name
        self._records, self._numbers, self._augmentation = records, numbers, augmentation
        self._labels = records.labels[numbers]
        self._mean = np.array(preprocessing.mean, dtype=np.float32)[:, None, None]
        self._std = np.array(preprocessing.std, dtype=np.float32)[:, None, None]
        self.digest = digest_of(
            "images", name, records.digest, numbers.tobytes(), self._labels.tobytes(), repr(preprocessing), repr(augmentation)
        )
        # Variants are drawn by a sample's place in the split, so augmented samples have no names outside of it.
        by_itself = SampleNames(digest_of("images", records.digest, repr(preprocessing)), numbers)
        self.sample_names = by_itself if augmentation is None else None

    def __len__(self) -> int:
        return len(self._numbers)

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        size, channels = self._records.image_size, self._records.channels
        pixels = np.zeros((len(indices), channels, size, size), dtype=np.float32)
        labels = np.full(len(indices), IGNORED, dtype=np.int64)
        real = [row for row, index in enumerate(indices) if index >= 0]
        images = self._records.several([int(self._numbers[indices[row]]) for row in real])
        for row, image in zip(real, images, strict=True):
            index, variant = indices[row], variants[row]
            pixels[row] = self._augmentation.apply(image, index, variant) if self._augmentation else image
            labels[row] = self._labels[index]
        return {"pixel_values": torch.from_numpy((pixels - self._mean) / self._std), "labels": torch.from_numpy(labels)}

    def later_inputs(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """The labels only, int64 [n], for stages after the first; IGNORED for padding."""
        labels = [IGNORED if index < 0 else int(self._labels[index]) for index in indices]
        return {"labels": torch.tensor(labels, dtype=torch.int64)}

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        return (sum(index >= 0 for index in indices),)

    def references(self) -> np.ndarray:
        """Class numbers, int64 [len]."""
        return self._labels


def build_image_data(job: Job, train: Images, test: Images | None) -> TaskData:
    """Cut images into the three splits; only the training split is augmented. Raises ValueError for unfit labels."""
    num_labels, test = resolve_labels(train, test, job.task.num_labels)
    preprocessing = _preprocessing(job, train)
    parts = partition(job, len(train), own_test=test is not None)
    held_out = (test, np.arange(len(test))) if test is not None else (train, parts.test)
    splits = (
        ImageSplit("train", train, parts.train, preprocessing, augmentation_of(job)),
        ImageSplit("guard", train, parts.guard, preprocessing, None),
        ImageSplit("test", *held_out, preprocessing, None),
    )
    sizes = DataSizes(num_labels=num_labels, image_size=train.image_size, channels=train.channels)
    digest = digest_of([split.digest for split in splits], repr(sizes))
    return TaskData(*splits, sizes, preprocessing, digest, augmentation_note(job))


def _preprocessing(job: Job, records: Images) -> ImagePreprocessing:
    """The checkpoint's mean and standard deviation if it has them; otherwise those that scale pixels to -1..1."""
    given: dict[str, Any] = {}
    if job.model.path or job.model.hub:
        given = _checkpoint_json(job, "preprocessor_config.json", required=False)
    mean = tuple(given.get("image_mean") or [0.5] * records.channels)
    std = tuple(given.get("image_std") or [0.5] * records.channels)
    if len(mean) != records.channels or len(std) != records.channels:
        raise ValueError(
            f"preprocessor_config.json of {job.model.path or job.model.hub} has {len(mean)} channels, the images have "
            f"{records.channels}; set model.config.num_channels or use another checkpoint"
        )
    return ImagePreprocessing(records.image_size, records.rescale_factor, mean, std)


def checkpoint_config(job: Job) -> dict[str, Any]:
    """config.json of the job's checkpoint. Raises ValueError if it cannot be read."""
    return _checkpoint_json(job, "config.json", required=True)


def _checkpoint_json(job: Job, name: str, required: bool) -> dict[str, Any]:
    source = job.model.path or job.model.hub
    assert source is not None, "asked for a checkpoint's file, the job names none"
    try:
        file = Path(source) / name if job.model.path else _hub_file(source, name, job.model.revision)
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise ValueError(f"{source}: holds no {name}; set model.path to a folder that save_pretrained wrote") from error
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{source}: its {name} cannot be read ({type(error).__name__}); check model.path or model.hub"
        ) from error


def _hub_file(hub: str, name: str, revision: str | None) -> Path:
    from transformers.utils import cached_file

    file = cached_file(hub, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    if file is None:
        raise FileNotFoundError(name)
    return Path(file)
