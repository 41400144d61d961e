"""Sizes of a data set to which a model's config is fitted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSizes:
    """Sizes that the data determines and a model's config must have; 0 if a size does not apply.

    Attributes:
        num_labels: classes (1: regression).
        vocabulary_size: upper bound of the token ids, exclusive.
        sequence_length: tokens of a sample.
        image_size: pixels a side.
        channels: colour channels.
        regression: whether the single label is a number, not a class.
    """

    num_labels: int = 0
    vocabulary_size: int = 0
    sequence_length: int = 0
    image_size: int = 0
    channels: int = 0
    regression: bool = False
