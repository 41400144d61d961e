"""Labelled texts, or pairs of texts, as a split: token ids in, class numbers or scores out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frostline_contract.job import Job
from frostline_trainer.data.augment import augmentation_note
from frostline_trainer.data.partition import partition
from frostline_trainer.data.records import Texts, resolve_labels
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import IGNORED, SampleNames, TaskData, digest_of
from frostline_trainer.data.tokenizer import build_tokenizer, tokenizer_digest

ENCODED_AT_ONCE = 1000
"""Texts passed to the tokenizer in one call, so that its intermediate objects stay small."""


class EncodedTexts:
    """Token ids of all records, stored without padding."""

    def __init__(self, tokenizer: Any, records: Texts, sequence_length: int) -> None:
        ids: list[np.ndarray] = []
        types: list[np.ndarray] = []
        for start in range(0, len(records), ENCODED_AT_ONCE):
            chosen = slice(start, start + ENCODED_AT_ONCE)
            encoded = tokenizer(
                records.first[chosen],
                records.second[chosen] or None,
                truncation=True,
                max_length=sequence_length,
                return_token_type_ids=True,
                return_attention_mask=False,
            )
            ids += [np.array(row, dtype=np.int32) for row in encoded["input_ids"]]
            types += [np.array(row, dtype=np.uint8) for row in encoded["token_type_ids"]]
        self.ids, self.types = ids, types
        self.sequence_length = sequence_length
        self.pad_id = int(tokenizer.pad_token_id)
        first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.pad_token_id
        self.padding_item = np.array([first], dtype=np.int32)

    def rows(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """input_ids, token_type_ids and attention_mask, int64 [n, sequence_length] each; -1 gives a text of one token."""
        shape = (len(numbers), self.sequence_length)
        ids, types, mask = np.full(shape, self.pad_id, dtype=np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, number in enumerate(numbers):
            tokens = self.ids[number] if number >= 0 else self.padding_item
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
            if number >= 0:
                types[row, : len(tokens)] = self.types[number]
        return {
            "input_ids": torch.from_numpy(ids),
            "token_type_ids": torch.from_numpy(types),
            "attention_mask": torch.from_numpy(mask),
        }


class TextSplit:
    """A split of texts.

    Inputs: those of EncodedTexts.rows, and labels: int64 [n]; for regression float32 [n] with label_weights float32 [n].

    Args:
        name: "train", "guard" or "test".
        encoded: the texts as tokens.
        labels: the label of each text.
        numbers: the text of each sample.
        digest: of texts, tokenizer and sequence length.
    """

    def __init__(self, name: str, encoded: EncodedTexts, labels: np.ndarray, numbers: np.ndarray, digest: str) -> None:
        self.name = name
        self._encoded, self._numbers, self._labels = encoded, numbers, labels[numbers]
        self._regression = labels.dtype.kind == "f"
        self.digest = digest_of("texts", name, digest, numbers.tobytes(), self._labels.tobytes())
        self.sample_names = SampleNames(digest_of("texts", digest), numbers)
        self.own_tokens = np.array([len(encoded.ids[number]) for number in numbers], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        assert len(indices) == len(variants), f"{len(indices)} indices and {len(variants)} variants"
        inputs = self._encoded.rows([int(self._numbers[index]) if index >= 0 else index for index in indices])
        valid = np.array(indices) >= 0
        labels = np.where(valid, self._labels[np.maximum(indices, 0)], 0 if self._regression else IGNORED)
        if self._regression:
            inputs["labels"] = torch.from_numpy(labels.astype(np.float32))
            inputs["label_weights"] = torch.from_numpy(valid.astype(np.float32))
        else:
            inputs["labels"] = torch.from_numpy(labels.astype(np.int64))
        return inputs

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        return (sum(index >= 0 for index in indices),)

    def references(self) -> np.ndarray:
        """Class numbers int64 [len], or scores float64 [len]."""
        return self._labels


def build_text_data(job: Job, train: Texts, test: Texts | None) -> TaskData:
    """Cut texts into the three splits. Raises ValueError for unfit labels."""
    regression = train.labels.dtype.kind == "f"
    num_labels = 1
    if not regression:
        num_labels, test = resolve_labels(train, test, job.task.num_labels)
    tokenizer = build_tokenizer(job, [*train.first, *train.second])
    length = job.data.sequence_length
    parts = partition(job, len(train), own_test=test is not None)

    def split(name: str, records: Texts, encoded: EncodedTexts, numbers: np.ndarray) -> TextSplit:
        digest = digest_of(records.digest, tokenizer_digest(tokenizer), length)
        return TextSplit(name, encoded, records.labels, numbers, digest)

    encoded = EncodedTexts(tokenizer, train, length)
    if test is None:
        held_out = split("test", train, encoded, parts.test)
    else:
        held_out = split("test", test, EncodedTexts(tokenizer, test, length), np.arange(len(test)))
    splits = (split("train", train, encoded, parts.train), split("guard", train, encoded, parts.guard), held_out)
    sizes = DataSizes(num_labels=num_labels, vocabulary_size=len(tokenizer), sequence_length=length, regression=regression)
    digest = digest_of([one.digest for one in splits], repr(sizes))
    return TaskData(*splits, sizes, tokenizer, digest, augmentation_note(job))
