"""SQuAD questions as a split: windows of question and context in, the answer's first and last token out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frostline_contract.job import Job
from frostline_trainer.data.augment import augmentation_note
from frostline_trainer.data.partition import partition
from frostline_trainer.data.records import Question, Questions
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import IGNORED, TaskData, digest_of
from frostline_trainer.data.tokenizer import build_tokenizer, tokenizer_digest

ENCODED_AT_ONCE = 500
QUESTION_SHARE = 4
"""A question takes at most this part (1 / 4) of a window; longer ones are cut (64 of 256 tokens, as BERT's authors do)."""


@dataclass(frozen=True)
class Windows:
    """Windows of one split, in question order; W of them, T tokens each.

    Attributes:
        ids: tokens, int32 [W, T].
        types: token types, uint8 [W, T].
        lengths: number of real tokens, int32 [W].
        first, last: places of the answer's first and last token, or IGNORED if the window does not contain it; int64 [W].
        context: the window's context tokens as places [low, high), int32 [W, 2].
        offsets: characters of each context token as [low, high), int32 [W, T, 2].
        question: number of the question, int64 [W].
    """

    ids: np.ndarray
    types: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    last: np.ndarray
    context: np.ndarray
    offsets: np.ndarray
    question: np.ndarray


@dataclass(frozen=True)
class SpanReferences:
    """The references for scoring predicted spans.

    Attributes:
        question, offsets: as in Windows.
        items: the questions, by number.
    """

    question: np.ndarray
    offsets: np.ndarray
    items: list[Question]


class QuestionSplit:
    """A split of windows of questions and contexts; W windows, T tokens each.

    Inputs, int64 [n, T]: input_ids, token_type_ids, attention_mask, context_mask (1 for tokens that may be in an answer);
    int64 [n]: start_positions, end_positions.

    Args:
        name: "train", "guard" or "test".
        windows: the samples.
        items: the questions, by number.
        pad_id: the padding token.
        first_id: the token of a padding item.
        digest: of data, tokenizer, length and stride of the windows.
    """

    def __init__(self, name: str, windows: Windows, items: list[Question], pad_id: int, first_id: int, digest: str) -> None:
        self.name = name
        self._windows, self._items, self._pad_id, self._first_id = windows, items, pad_id, first_id
        self.digest = digest_of("questions", name, digest, windows.ids.tobytes(), windows.first.tobytes(), windows.last.tobytes())

    def __len__(self) -> int:
        return len(self._windows.ids)

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        assert len(indices) == len(variants), f"{len(indices)} indices and {len(variants)} variants"
        windows, numbers = self._windows, np.array(indices)
        padding, rows = numbers < 0, np.maximum(numbers, 0)
        ids, types = windows.ids[rows].astype(np.int64), windows.types[rows].astype(np.int64)
        ids[padding], types[padding] = self._pad_id, 0
        ids[padding, 0] = self._first_id
        place = np.arange(ids.shape[1])[None]
        lengths = np.where(padding, 1, windows.lengths[rows])
        low, high = windows.context[rows, :1], np.where(padding[:, None], 0, windows.context[rows, 1:])
        return {
            "input_ids": torch.from_numpy(ids),
            "token_type_ids": torch.from_numpy(types),
            "attention_mask": torch.from_numpy((place < lengths[:, None]).astype(np.int64)),
            "context_mask": torch.from_numpy(((place >= low) & (place < high)).astype(np.int64)),
            "start_positions": torch.from_numpy(np.where(padding, IGNORED, windows.first[rows])),
            "end_positions": torch.from_numpy(np.where(padding, IGNORED, windows.last[rows])),
        }

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        """(valid starts, valid ends) among the samples."""
        rows = [index for index in indices if index >= 0]
        return (int((self._windows.first[rows] >= 0).sum()), int((self._windows.last[rows] >= 0).sum()))

    def references(self) -> SpanReferences:
        return SpanReferences(self._windows.question, self._windows.offsets, self._items)


def make_windows(tokenizer: Any, items: list[Question], sequence_length: int, doc_stride: int) -> Windows:
    """Cut each question's context into windows.

    Args:
        tokenizer: of transformers.
        items: the questions.
        sequence_length: tokens of a window, with the question.
        doc_stride: tokens by which windows overlap.

    Raises:
        ValueError: the overlap is so large that windows would not advance.
    """
    texts = _shortened(tokenizer, [item.question for item in items], sequence_length // QUESTION_SHARE)
    room = sequence_length - sequence_length // QUESTION_SHARE - tokenizer.num_special_tokens_to_add(pair=True)
    if doc_stride >= room:
        raise ValueError(
            f"data.doc_stride is {doc_stride}; with data.sequence_length {sequence_length} a window has room for {room} "
            f"tokens of context, so it must be below {room}"
        )
    parts: dict[str, list[Any]] = {name: [] for name in Windows.__dataclass_fields__}
    for start in range(0, len(items), ENCODED_AT_ONCE):
        chosen = slice(start, start + ENCODED_AT_ONCE)
        encoded = tokenizer(
            texts[chosen],
            [item.context for item in items[chosen]],
            truncation="only_second",
            max_length=sequence_length,
            stride=doc_stride,
            padding="max_length",
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        offsets = np.array(encoded["offset_mapping"], dtype=np.int32)
        for row, local in enumerate(encoded["overflow_to_sample_mapping"]):
            low, high = _context_range(encoded.sequence_ids(row))
            first, last = _token_span(offsets[row], low, high, items[start + local].answers[0])
            parts["context"].append((low, high))
            parts["first"].append(first)
            parts["last"].append(last)
            parts["question"].append(start + local)
        parts["ids"] += encoded["input_ids"]
        parts["types"] += encoded["token_type_ids"]
        parts["lengths"] += [sum(row) for row in encoded["attention_mask"]]
        parts["offsets"] += list(offsets)
    kinds = {"types": np.uint8, "first": np.int64, "last": np.int64, "question": np.int64}
    return Windows(**{name: np.array(rows, dtype=kinds.get(name, np.int32)) for name, rows in parts.items()})


def _shortened(tokenizer: Any, questions: list[str], tokens_max: int) -> list[str]:
    encoded = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = [row[tokens_max - 1][1] if len(row) > tokens_max else None for row in encoded["offset_mapping"]]
    return [question[:end] for question, end in zip(questions, ends, strict=True)]


def _context_range(sequence_ids: list[int | None]) -> tuple[int, int]:
    low = sequence_ids.index(1) if 1 in sequence_ids else 0
    return low, low + sequence_ids.count(1)


def _token_span(offsets: np.ndarray, low: int, high: int, answer: tuple[str, int]) -> tuple[int, int]:
    """First and last token of the answer, or IGNORED twice if the window does not contain all of it."""
    text, start = answer
    end = start + len(text)
    if high <= low or offsets[low, 0] > start or offsets[high - 1, 1] < end:
        return IGNORED, IGNORED
    # The tokens with the answer's first and last character: if an answer begins inside a token, the whole token is taken.
    first = low + int(np.searchsorted(offsets[low:high, 1], start, side="right"))
    last = low + int(np.searchsorted(offsets[low:high, 0], end, side="left")) - 1
    return (first, last) if low <= first <= last < high else (IGNORED, IGNORED)


def build_question_data(job: Job, train: Questions, test: Questions | None) -> TaskData:
    """Distribute questions over the splits, and cut them into windows. (All windows of a question are in one split.)"""
    every = [*(item.question for item in train.items), *dict.fromkeys(item.context for item in train.items)]
    tokenizer = build_tokenizer(job, every)
    length, stride = job.data.sequence_length, job.data.doc_stride
    tokens = tokenizer_digest(tokenizer)
    first_id = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.pad_token_id

    def split(name: str, items: list[Question], digest: str) -> QuestionSplit:
        windows = make_windows(tokenizer, items, length, stride)
        return QuestionSplit(name, windows, items, tokenizer.pad_token_id, first_id, digest_of(digest, tokens, length, stride))

    parts = partition(job, len(train), own_test=test is not None)
    held_out = test.items if test is not None else [train.items[number] for number in parts.test]
    splits = (
        split("train", [train.items[number] for number in parts.train], train.digest),
        split("guard", [train.items[number] for number in parts.guard], train.digest),
        split("test", held_out, test.digest if test is not None else train.digest),
    )
    if splits[0].valid_counts(range(len(splits[0])))[0] == 0:
        raise ValueError(f"data.path {job.data.path}: no training window holds its answer; raise data.sequence_length ({length})")
    sizes = DataSizes(num_labels=2, vocabulary_size=len(tokenizer), sequence_length=length)
    digest = digest_of([one.digest for one in splits], repr(sizes))
    return TaskData(*splits, sizes, tokenizer, digest, augmentation_note(job))
