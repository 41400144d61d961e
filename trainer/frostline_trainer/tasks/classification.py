"""Classification: one class for each sample (an image, a text or a pair of texts)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from frostline_trainer.data.split import IGNORED, Split
from frostline_trainer.tasks.base import PREDICTION, chosen_metric, cross_entropies, mean_loss, share, summed_cross_entropy
from frostline_trainer.tasks.scores import accuracy, f1, matthews

METRICS = ("accuracy", "f1", "matthews")


class Classification:
    """logits [n, num_labels]; inputs["labels"] int64 [n]. Rows: loss, count, predicted class."""

    num_columns = 3
    padding_blind = True

    def __init__(self, num_labels: int, metric: str | None, own_metric: str = "accuracy") -> None:
        self.num_labels = num_labels
        self.main_metric = chosen_metric(metric, own_metric, METRICS)

    def loss_counts(self, split: Split, indices: Sequence[int]) -> tuple[int, ...]:
        return split.valid_counts(indices)

    def loss(self, logits: Tensor, inputs: dict[str, Tensor], counts: tuple[int, ...]) -> Tensor:
        return share(summed_cross_entropy(logits, inputs["labels"]), counts[0])

    def evaluate(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        losses = cross_entropies(logits, inputs["labels"]).double()
        return torch.stack([losses, (inputs["labels"] != IGNORED).double(), logits.argmax(-1).double()], dim=1)

    def metrics(self, rows: np.ndarray, split: Split) -> dict[str, float]:
        predicted, labels = rows[:, PREDICTION].astype(np.int64), split.references()
        return {
            "loss": mean_loss(rows),
            "accuracy": accuracy(predicted, labels),
            "f1": f1(predicted, labels, self.num_labels),
            "matthews": matthews(predicted, labels, self.num_labels),
        }
