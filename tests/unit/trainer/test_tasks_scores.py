"""Scores against the libraries that define them, and SQuAD's against hand-worked cases."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn_metrics

from frostline_trainer.data.questions import SpanReferences
from frostline_trainer.data.records import Question
from frostline_trainer.tasks.question_answering import ANSWER_TOKENS_MAX, best_spans, predicted_texts
from frostline_trainer.tasks.scores import accuracy, f1, matthews, pearson, spearman
from frostline_trainer.tasks.squad_score import exact_match, f1_overlap, normalised


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_labels", [2, 4])
def test_class_scores_equal_scikit_learn(seed: int, num_labels: int) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, num_labels, 50)
    predicted = np.where(draw.random(50) < 0.6, labels, draw.integers(0, num_labels, 50))
    average = "binary" if num_labels == 2 else "macro"
    assert accuracy(predicted, labels) == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    assert f1(predicted, labels, num_labels) == pytest.approx(sklearn_metrics.f1_score(labels, predicted, average=average))
    assert matthews(predicted, labels, num_labels) == pytest.approx(sklearn_metrics.matthews_corrcoef(labels, predicted))


@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_scipy(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 6, 40).astype(np.float64)
    predicted = scores + draw.normal(0, 1.5, 40).round(1)
    assert pearson(predicted, scores) == pytest.approx(stats.pearsonr(predicted, scores).statistic)
    assert spearman(predicted, scores) == pytest.approx(stats.spearmanr(predicted, scores).statistic)


def test_constant_predictions_score_zero_not_nan() -> None:
    labels, constant = np.array([0, 1, 1, 0]), np.ones(4, dtype=np.int64)
    assert matthews(constant, labels, 2) == 0.0
    assert pearson(constant.astype(float), labels.astype(float)) == 0.0
    assert spearman(constant.astype(float), labels.astype(float)) == 0.0
    assert f1(np.zeros(4, dtype=np.int64), labels, 2) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat!", "cat"),
        ("an apple, a day", "apple day"),
        ("U.S.A.", "usa"),
        ("theory of Athens", "theory of athens"),
        ("the", ""),
        ("co-op  a-b", "coop ab"),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "overlap"),
    [
        ("The Rome", ["rome"], 1.0, 1.0),
        ("in Rome", ["Rome"], 0.0, 2 / 3),
        ("Paris", ["Rome", "the city of Paris"], 0.0, 0.5),
        ("to be to", ["to be or not to be"], 0.0, 2 * 3 / 9),
        ("Oslo", ["Rome"], 0.0, 0.0),
        ("", ["Rome"], 0.0, 0.0),
    ],
)
def test_squad_scores_by_hand(predicted: str, answers: list[str], exact: float, overlap: float) -> None:
    assert exact_match(predicted, answers) == exact
    assert f1_overlap(predicted, answers) == pytest.approx(overlap)


def brute_force(logits: np.ndarray, allowed: np.ndarray) -> tuple[int, int, float]:
    legal = [
        (float(logits[i, 0] + logits[j, 1]), i, j)
        for i in range(len(logits))
        for j in range(i, min(i + ANSWER_TOKENS_MAX, len(logits)))
        if allowed[i] and allowed[j]
    ]
    score, first, last = max(legal, key=lambda entry: (entry[0], -entry[1], -entry[2]))
    return first, last, score


@pytest.mark.parametrize("seed", range(6))
def test_best_span_equals_brute_force(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 48, 2, generator=generator)
    logits[0, 2, 0] = logits[0, 2 + ANSWER_TOKENS_MAX, 1] = 50.0  # one token too long to be an answer
    allowed = torch.zeros(3, 48, dtype=torch.bool)
    allowed[:, 2:40] = True
    first, last, score = best_spans(logits, allowed)
    for row in range(3):
        expected = brute_force(logits[row].numpy(), allowed[row].numpy())
        assert (int(first[row]), int(last[row])) == expected[:2]
        assert float(score[row]) == pytest.approx(expected[2])


def test_the_best_window_of_a_question_answers_it() -> None:
    items = [Question("a", "?", "Bob lives in Oslo today", (("Oslo", 13),)), Question("b", "?", "Nowhere", (("Nowhere", 0),))]
    offsets = np.array([[[0, 0], [0, 3], [4, 9]], [[0, 0], [13, 17], [18, 23]], [[0, 0], [0, 7], [0, 0]]], dtype=np.int32)
    references = SpanReferences(question=np.array([0, 0, 1]), offsets=offsets, items=items)
    rows = np.array([[0, 0, 1, 2, 3.5], [0, 0, 1, 1, 4.0], [0, 0, 1, 1, float("-inf")]])
    assert predicted_texts(rows, references) == ["Oslo", ""]
    rows[1, 4] = 3.0
    assert predicted_texts(rows, references)[0] == "Bob lives"
