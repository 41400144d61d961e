"""SQuAD v1.1's scores: exact match and word overlap, after the benchmark's normalisation of answers (Rajpurkar et al. 2016)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Lower case, without punctuation and English articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1.0 if the prediction equals one of the answers after normalisation, else 0.0."""
    return float(any(normalised(predicted) == normalised(answer) for answer in answers))


def f1_overlap(predicted: str, answers: Sequence[str]) -> float:
    """The best F1 of common words with one of the answers, 0..1."""
    return max(_overlap(normalised(predicted).split(), normalised(answer).split()) for answer in answers)


def _overlap(predicted: list[str], answer: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(answer)).values())
    return 2 * common / (len(predicted) + len(answer)) if common else 0.0
