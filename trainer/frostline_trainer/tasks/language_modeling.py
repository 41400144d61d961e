"""Causal language modeling: predict each token from all tokens before it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from frostline_trainer.data.split import IGNORED, Split
from frostline_trainer.tasks.base import (
    LOSS_COUNT,
    PREDICTION,
    Vocabulary,
    WholeVocabulary,
    chosen_metric,
    mean_loss,
    share,
)

METRICS = ("perplexity", "accuracy")
LOSS_OF_INFINITE_PERPLEXITY = 700.0
"""Losses are capped here for the perplexity, since exp overflows a little above and JSON has no infinity."""


class LanguageModeling:
    """logits [n, tokens, vocabulary]; inputs["labels"] int64 [n, tokens], already shifted. Rows: loss, tokens, right tokens.

    Attributes:
        vocabulary: computes losses and predictions from the logits; another one where tiles cut the vocabulary.
    """

    num_columns = 3
    padding_blind = True

    def __init__(self, metric: str | None) -> None:
        self.main_metric = chosen_metric(metric, "perplexity", METRICS)
        self.vocabulary: Vocabulary = WholeVocabulary()

    def loss_counts(self, split: Split, indices: Sequence[int]) -> tuple[int, ...]:
        return split.valid_counts(indices)

    def loss(self, logits: Tensor, inputs: dict[str, Tensor], counts: tuple[int, ...]) -> Tensor:
        return share(self.vocabulary.summed_cross_entropy(logits, inputs["labels"]), counts[0])

    def evaluate(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        labels = inputs["labels"]
        losses = self.vocabulary.cross_entropies(logits, labels).double().sum(1)
        right = (self.vocabulary.best(logits) == labels).double().sum(1)
        return torch.stack([losses, (labels != IGNORED).double().sum(1), right], dim=1)

    def metrics(self, rows: np.ndarray, split: Split) -> dict[str, float]:
        loss = mean_loss(rows)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, LOSS_OF_INFINITE_PERPLEXITY)),
            "accuracy": float(rows[:, PREDICTION].sum() / max(rows[:, LOSS_COUNT].sum(), 1.0)),
        }
