"""Extractive question answering: predict the span of the context that answers a question."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from frostline_trainer.data.questions import SpanReferences
from frostline_trainer.data.split import IGNORED, Split
from frostline_trainer.tasks.base import chosen_metric, cross_entropies, loss_precision, mean_loss, share, summed_cross_entropy
from frostline_trainer.tasks.squad_score import exact_match, f1_overlap

METRICS = ("f1", "exact_match")
ANSWER_TOKENS_MAX = 30
"""Longest predicted answer, as in BERT's published evaluation."""

FIRST, LAST, SCORE = 2, 3, 4
"""Columns: the window's best span, and the sum of its two logits, by which the best window of a question is chosen."""


class QuestionAnswering:
    """Two loss terms, the answer's first and last token. logits [n, tokens, 2]. Rows: loss, count, first, last, score."""

    num_columns = 5

    def __init__(self, metric: str | None) -> None:
        self.main_metric = chosen_metric(metric, "f1", METRICS)

    def loss_counts(self, split: Split, indices: Sequence[int]) -> tuple[int, ...]:
        return split.valid_counts(indices)

    def loss(self, logits: Tensor, inputs: dict[str, Tensor], counts: tuple[int, ...]) -> Tensor:
        start = share(summed_cross_entropy(logits[..., 0], inputs["start_positions"]), counts[0])
        end = share(summed_cross_entropy(logits[..., 1], inputs["end_positions"]), counts[1])
        return (start + end) / 2

    def evaluate(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        starts, ends = inputs["start_positions"], inputs["end_positions"]
        losses = (cross_entropies(logits[..., 0], starts).double() + cross_entropies(logits[..., 1], ends).double()) / 2
        first, last, score = best_spans(logits, inputs["context_mask"].bool())
        return torch.stack([losses, (starts != IGNORED).double(), first.double(), last.double(), score.double()], dim=1)

    def metrics(self, rows: np.ndarray, split: Split) -> dict[str, float]:
        references: SpanReferences = split.references()
        texts = predicted_texts(rows, references)
        answers = [[text for text, _ in item.answers] for item in references.items]
        return {
            "loss": mean_loss(rows),
            "f1": float(np.mean([f1_overlap(text, given) for text, given in zip(texts, answers, strict=True)])),
            "exact_match": float(np.mean([exact_match(text, given) for text, given in zip(texts, answers, strict=True)])),
        }


def best_spans(logits: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best span of each window. A span runs forward over tokens of the context and has at most ANSWER_TOKENS_MAX tokens.

    Args:
        logits: [n, tokens, 2], scores of a span's first and last token.
        allowed: bool [n, tokens], tokens of the context.

    Returns:
        First and last token [n] and score [n]; the score of a window without context is -inf.
    """
    scores = loss_precision(logits).masked_fill(~allowed[..., None], float("-inf"))
    tokens = scores.shape[1]
    sums = scores[:, :, None, 0] + scores[:, None, :, 1]
    legal = torch.ones(tokens, tokens, dtype=torch.bool, device=logits.device).triu().tril(ANSWER_TOKENS_MAX - 1)
    best = sums.masked_fill(~legal, float("-inf")).flatten(1).max(dim=1)
    return best.indices // tokens, best.indices % tokens, best.values


def predicted_texts(rows: np.ndarray, references: SpanReferences) -> list[str]:
    """For each question the text of the best-scored span among its windows."""
    best: dict[int, int] = {}
    for window, question in enumerate(references.question.tolist()):
        if question not in best or rows[window, SCORE] > rows[best[question], SCORE]:
            best[question] = window
    texts = []
    for question, item in enumerate(references.items):
        window = best[question]
        start = references.offsets[window, int(rows[window, FIRST]), 0]
        end = references.offsets[window, int(rows[window, LAST]), 1]
        texts.append(item.context[start:end] if np.isfinite(rows[window, SCORE]) else "")
    return texts
