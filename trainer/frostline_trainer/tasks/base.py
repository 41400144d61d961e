"""The interface of a task: a loss that adds up over micro-batches, and metrics over the rows of an evaluation."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frostline_trainer.data.split import IGNORED, Split

LOSS_SUM, LOSS_COUNT, PREDICTION = 0, 1, 2
"""Columns of an evaluated row: the sample's summed loss, its valid items, and from the third on what the metrics need."""


class Task(Protocol):
    """A task: how logits become a loss, rows of an evaluation, and metrics.

    Attributes:
        main_metric: the name of the metric that represents the task in reports, one of those that `metrics` returns.
        num_columns: columns of an evaluated row.
        padding_blind (optional, default False): the loss reads no logits of padding tokens.
    """

    main_metric: str
    num_columns: int

    def loss_counts(self, split: Split, indices: Sequence[int]) -> tuple[int, ...]:
        """Number of valid items of each loss term among the samples; `loss` divides by those of a step's whole batch."""
        ...

    def loss(self, logits: Tensor, inputs: dict[str, Tensor], counts: tuple[int, ...]) -> Tensor:
        """This micro-batch's share of the step's loss, a scalar: the sum over terms of
        (sum of valid items' losses) / counts[term] / number of terms. counts are those of the WHOLE step's batch, so that
        the micro-batches' losses add up to the step's (docs/protocols.md 1.3)."""
        ...

    def evaluate(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """One row a sample, float64 [n, columns]: LOSS_SUM, LOSS_COUNT, then predictions."""
        ...

    def metrics(self, rows: np.ndarray, split: Split) -> dict[str, float]:
        """ "loss" and the task's metrics, from the rows of all samples of `split` in order, float64 [len(split), columns].
        Fractions, not percent."""
        ...


class Vocabulary(Protocol):
    """How a task over a vocabulary computes losses and predictions from logits [..., entries]."""

    def cross_entropies(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Each item's cross entropy, 0 where ignored, in the shape of `labels`."""
        ...

    def summed_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum of the valid items' cross entropies."""
        ...

    def best(self, logits: Tensor) -> Tensor:
        """The entry with the largest logit, int64 [...]."""
        ...


class WholeVocabulary:
    """Logits of the whole vocabulary in one tensor."""

    def cross_entropies(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropies(logits, labels)

    def summed_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return summed_cross_entropy(logits, labels)

    def best(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


def loss_precision(logits: Tensor) -> Tensor:
    """Logits in the type that losses are computed in: at least float32.

    transformers does this for causal language models only (`logits.float()`), and lowers float64 as well. Here half types are
    raised for every task, since a sum of bfloat16 losses has three digits only, and float64 stays float64.
    """
    return logits if logits.dtype == torch.float64 else logits.float()


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the valid items' cross entropies. logits [..., classes], labels int64 [...] with IGNORED for invalid items."""
    flat = loss_precision(logits).reshape(-1, logits.shape[-1])
    return F.cross_entropy(flat, labels.reshape(-1), reduction="sum", ignore_index=IGNORED)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Each item's cross entropy, 0 where ignored, in the shape of `labels`."""
    flat = loss_precision(logits).reshape(-1, logits.shape[-1])
    return F.cross_entropy(flat, labels.reshape(-1), reduction="none", ignore_index=IGNORED).view(labels.shape)


def share(loss_sum: Tensor, count: int) -> Tensor:
    """loss_sum / count; a batch without valid items of a term has a sum of 0 and a share of 0."""
    return loss_sum / max(count, 1)


def mean_loss(rows: np.ndarray) -> float:
    """Mean loss over valid items; 0.0 if there are none."""
    return float(rows[:, LOSS_SUM].sum() / max(rows[:, LOSS_COUNT].sum(), 1.0))


def chosen_metric(wanted: str | None, own: str, offered: Sequence[str]) -> str:
    """task.metric, or the task's default if the job names none. Raises ValueError for a metric that the task does not compute."""
    if wanted is not None and wanted not in offered:
        raise ValueError(f"task.metric is {wanted!r}; this task offers {', '.join(offered)}")
    return wanted or own
