"""Running text as a split for causal language modelling: blocks of tokens, each predicting its own next tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frostline_contract.job import Job
from frostline_trainer.data.augment import augmentation_note
from frostline_trainer.data.partition import partition
from frostline_trainer.data.records import Documents
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import IGNORED, SampleNames, TaskData, digest_of
from frostline_trainer.data.tokenizer import build_tokenizer, tokenizer_digest


class BlockSplit:
    """A split of running text. Sample i is tokens [numbers[i] * T, (numbers[i] + 1) * T) of the stream, T the sequence length.

    Inputs, int64 [n, T] each: input_ids, attention_mask, and labels, shifted here so that labels[t] is the token after t;
    a block's last token predicts nothing, so no label crosses from one sample to another.

    Args:
        name: "train", "guard" or "test".
        stream: the tokens of the whole text, one after the other.
        numbers: the block of each sample.
        sequence_length: tokens of a sample.
        pad_id: the token behind the stream's end.
        digest: of text and tokenizer.
    """

    padding_comes_last = True

    def __init__(
        self, name: str, stream: np.ndarray, numbers: np.ndarray, sequence_length: int, pad_id: int, digest: str
    ) -> None:
        self.name = name
        self._stream, self._numbers, self._length, self._pad_id = stream, numbers, sequence_length, pad_id
        self.digest = digest_of("blocks", name, digest, sequence_length, pad_id, numbers.tobytes())
        self.sample_names = SampleNames(digest_of("blocks", digest, sequence_length, pad_id), numbers)
        self.own_tokens = np.minimum(sequence_length, len(stream) - np.asarray(numbers) * sequence_length)

    def __len__(self) -> int:
        return len(self._numbers)

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        assert len(indices) == len(variants), f"{len(indices)} indices and {len(variants)} variants"
        shape = (len(indices), self._length)
        ids, mask, labels = np.full(shape, self._pad_id, np.int64), np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, index in enumerate(indices):
            tokens = self._block(index)
            ids[row, : len(tokens)] = tokens
            # A padding item keeps one visible token, since a softmax over no token is NaN.
            mask[row, : max(len(tokens), 1)] = 1
            labels[row, : max(len(tokens) - 1, 0)] = tokens[1:]
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(labels),
        }

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        return (sum(max(len(self._block(index)) - 1, 0) for index in indices),)

    def references(self) -> None:
        """None: perplexity and accuracy are computed from the rows alone."""

    def _block(self, index: int) -> np.ndarray:
        if index < 0:
            return self._stream[:0]
        start = int(self._numbers[index]) * self._length
        return self._stream[start : start + self._length]


def token_stream(tokenizer: Any, records: Documents) -> np.ndarray:
    """All documents' token ids, int32, each document followed by the end-of-text token if the tokenizer has one."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    rows = tokenizer(records.texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return np.concatenate([np.array([*row, *end], dtype=np.int32) for row in rows])


def num_blocks(stream: np.ndarray, sequence_length: int) -> int:
    """The number of whole blocks, plus a short last one if it has at least one prediction."""
    whole, rest = divmod(len(stream), sequence_length)
    return whole + (rest >= 2)


def build_language_data(job: Job, train: Documents, test: Documents | None) -> TaskData:
    """Cut documents into blocks, and distribute these over the three splits. Raises ValueError if there is too little text."""
    tokenizer = build_tokenizer(job, train.texts)
    length = job.data.sequence_length
    tokens = tokenizer_digest(tokenizer)

    def split(name: str, records: Documents, stream: np.ndarray, numbers: np.ndarray) -> BlockSplit:
        return BlockSplit(name, stream, numbers, length, int(tokenizer.pad_token_id), digest_of(records.digest, tokens))

    stream = token_stream(tokenizer, train)
    parts = partition(job, num_blocks(stream, length), own_test=test is not None)
    if test is None:
        held_out = split("test", train, stream, parts.test)
    else:
        test_stream = token_stream(tokenizer, test)
        if num_blocks(test_stream, length) < 1:
            raise ValueError(f"data.test_path {job.data.test_path}: {len(test_stream)} token(s); the test split needs at least 2")
        held_out = split("test", test, test_stream, np.arange(num_blocks(test_stream, length)))
    splits = (split("train", train, stream, parts.train), split("guard", train, stream, parts.guard), held_out)
    sizes = DataSizes(vocabulary_size=len(tokenizer), sequence_length=length)
    digest = digest_of([one.digest for one in splits], repr(sizes))
    return TaskData(*splits, sizes, tokenizer, digest, augmentation_note(job))
