"""Regression: one number for each text or pair of texts, e.g. GLUE's similarity scores."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from frostline_trainer.data.split import Split
from frostline_trainer.tasks.base import PREDICTION, chosen_metric, loss_precision, mean_loss, share
from frostline_trainer.tasks.scores import pearson, spearman

METRICS = ("pearson", "spearman")


class Regression:
    """Squared error. logits [n, 1]; inputs["labels"], inputs["label_weights"] float [n]. Rows: loss, count, predicted score."""

    num_columns = 3
    padding_blind = True

    def __init__(self, metric: str | None) -> None:
        self.main_metric = chosen_metric(metric, "pearson", METRICS)

    def loss_counts(self, split: Split, indices: Sequence[int]) -> tuple[int, ...]:
        return split.valid_counts(indices)

    def loss(self, logits: Tensor, inputs: dict[str, Tensor], counts: tuple[int, ...]) -> Tensor:
        return share(self._squares(logits, inputs).sum(), counts[0])

    def evaluate(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        columns = [self._squares(logits, inputs), inputs["label_weights"], loss_precision(logits).squeeze(-1)]
        return torch.stack([column.double() for column in columns], dim=1)

    def metrics(self, rows: np.ndarray, split: Split) -> dict[str, float]:
        predicted, scores = rows[:, PREDICTION], split.references()
        return {"loss": mean_loss(rows), "pearson": pearson(predicted, scores), "spearman": spearman(predicted, scores)}

    @staticmethod
    def _squares(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        raised = loss_precision(logits).squeeze(-1)
        return (raised - inputs["labels"].to(raised.dtype)).square() * inputs["label_weights"].to(raised.dtype)
