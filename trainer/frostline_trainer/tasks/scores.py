"""Metrics of classes and scores, written without a library because they are small and computed at every interval's end."""

import numpy as np


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal entries."""
    return float((predicted == labels).mean())


def confusion(predicted: np.ndarray, labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Counts [true class, predicted class], float64."""
    table = np.zeros((num_labels, num_labels))
    np.add.at(table, (labels, predicted), 1)
    return table


def f1(predicted: np.ndarray, labels: np.ndarray, num_labels: int) -> float:
    """Two classes: F1 of class 1, as GLUE scores MRPC and QQP. More: the unweighted mean over classes that occur."""
    table = confusion(predicted, labels, num_labels)
    hits, seen = np.diag(table), table.sum(0) + table.sum(1)
    each = np.divide(2 * hits, seen, out=np.zeros(num_labels), where=seen > 0)
    return float(each[1]) if num_labels == 2 else float(each[seen > 0].mean())


def matthews(predicted: np.ndarray, labels: np.ndarray, num_labels: int) -> float:
    """Matthews correlation, in its form for any number of classes (Gorodkin 2004); 0.0 if one side is constant."""
    table = confusion(predicted, labels, num_labels)
    total, true, guessed = table.sum(), table.sum(1), table.sum(0)
    covariance = np.diag(table).sum() * total - true @ guessed
    spread = np.sqrt((total**2 - guessed @ guessed) * (total**2 - true @ true))
    return float(covariance / spread) if spread > 0 else 0.0


def pearson(predicted: np.ndarray, scores: np.ndarray) -> float:
    """Linear correlation; 0.0 if one side is constant."""
    a, b = predicted - predicted.mean(), scores - scores.mean()
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread > 0 else 0.0


def spearman(predicted: np.ndarray, scores: np.ndarray) -> float:
    """Correlation of ranks, ties at their mean rank; 0.0 if one side is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(predicted), rankdata(scores))
