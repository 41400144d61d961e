"""Losses add up over micro-batches to the whole batch's and have transformers' bits; rows carry the values for metrics."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss, ForQuestionAnsweringLoss, ForSequenceClassificationLoss

from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import IGNORED
from frostline_trainer.tasks import task_for
from tests.unit.trainer.data_cases import job_of

CLASSES, TOKENS = 5, 12
SIZES = {
    "image_classification": DataSizes(num_labels=CLASSES),
    "text_classification": DataSizes(num_labels=1, regression=True),
    "question_answering": DataSizes(num_labels=2),
    "language_modeling": DataSizes(vocabulary_size=CLASSES),
}


@dataclass
class Labels:
    """A split that has references only."""

    values: Any

    def references(self) -> Any:
        return self.values


def case(kind: str, rows: int = 8, seed: int = 0) -> tuple[Tensor, dict[str, Tensor], tuple[int, ...]]:
    """Return logits, inputs with unequal valid counts, and these counts; the last two rows are padding."""
    generator = torch.Generator().manual_seed(seed)
    padding = torch.arange(rows) >= rows - 2
    if kind == "image_classification":
        labels = torch.randint(0, CLASSES, (rows,), generator=generator).masked_fill(padding, IGNORED)
        return torch.randn(rows, CLASSES, generator=generator), {"labels": labels}, (rows - 2,)
    if kind == "text_classification":
        inputs = {"labels": torch.randn(rows, generator=generator), "label_weights": (~padding).float()}
        return torch.randn(rows, 1, generator=generator), inputs, (rows - 2,)
    if kind == "language_modeling":
        labels = torch.randint(0, CLASSES, (rows, TOKENS), generator=generator)
        lengths = torch.randint(1, TOKENS, (rows, 1), generator=generator)
        labels = labels.masked_fill((torch.arange(TOKENS) >= lengths) | padding[:, None], IGNORED)
        return torch.randn(rows, TOKENS, CLASSES, generator=generator), {"labels": labels}, (int((labels != IGNORED).sum()),)
    unheld = padding | (torch.arange(rows) == 1)
    spans = {
        key: torch.randint(0, TOKENS, (rows,), generator=generator).masked_fill(unheld, IGNORED)
        for key in ("start_positions", "end_positions")
    }
    inputs = {**spans, "context_mask": torch.ones(rows, TOKENS, dtype=torch.int64)}
    return torch.randn(rows, TOKENS, 2, generator=generator), inputs, (rows - 3, rows - 3)


def task_of(kind: str):
    return task_for(job_of(kind, "csv"), SIZES[kind])


@pytest.mark.parametrize("kind", SIZES)
def test_micro_batches_add_up_to_the_whole_batch(kind: str) -> None:
    logits, inputs, counts = case(kind)
    logits, task = logits.double(), task_of(kind)
    whole = task.loss(logits, inputs, counts)
    parts = [
        task.loss(logits[i : i + 2], {key: value[i : i + 2] for key, value in inputs.items()}, counts) for i in range(0, 8, 2)
    ]
    assert whole.dtype == torch.float64
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-14)
    assert float(parts[-1]) == 0.0


@pytest.mark.parametrize("kind", SIZES)
def test_rows_hold_each_sample_s_loss(kind: str) -> None:
    logits, inputs, counts = case(kind)
    task = task_of(kind)
    rows = task.evaluate(logits, inputs)
    assert rows.dtype == torch.float64
    assert rows.shape == (8, task.num_columns)
    assert int(rows[:, 1].sum()) == counts[0]
    assert float(rows[:, 0].sum() / rows[:, 1].sum()) == pytest.approx(float(task.loss(logits, inputs, counts)), rel=1e-5)
    assert rows[-2:, :2].abs().sum() == 0


@pytest.mark.parametrize("kind", SIZES)
def test_half_types_are_raised_and_padding_gets_no_gradient(kind: str) -> None:
    logits, inputs, counts = case(kind)
    logits = logits.bfloat16().requires_grad_()
    loss = task_of(kind).loss(logits, inputs, counts)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, task_of(kind).loss(logits.float(), inputs, counts))
    assert logits.grad[-2:].abs().sum() == 0
    assert logits.grad[:-2].abs().sum() > 0


@pytest.mark.parametrize("kind", SIZES)
def test_a_batch_without_valid_items_costs_nothing(kind: str) -> None:
    logits, inputs, counts = case(kind)
    empty = {key: value[-2:] for key, value in inputs.items()}
    assert float(task_of(kind).loss(logits[-2:], empty, (0,) * len(counts))) == 0.0


def test_classification_has_transformers_bits() -> None:
    logits, inputs, counts = case("image_classification")
    config = type("Config", (), {"num_labels": CLASSES, "problem_type": None})()
    theirs = ForSequenceClassificationLoss(inputs["labels"], logits, config, num_items_in_batch=counts[0])
    assert torch.equal(task_of("image_classification").loss(logits, inputs, counts), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_language_modelling_has_transformers_bits(dtype: torch.dtype) -> None:
    logits, inputs, counts = case("language_modeling")
    theirs = ForCausalLMLoss(logits.to(dtype), None, CLASSES, num_items_in_batch=counts[0], shift_labels=inputs["labels"])
    assert torch.equal(task_of("language_modeling").loss(logits.to(dtype), inputs, counts), theirs)


def test_question_answering_has_transformers_bits() -> None:
    logits, inputs, counts = case("question_answering")
    positions = [inputs[key].masked_fill(inputs[key] == IGNORED, TOKENS) for key in ("start_positions", "end_positions")]
    theirs = ForQuestionAnsweringLoss(logits[..., 0], logits[..., 1], *positions, num_items_in_batch=counts[0])
    assert torch.equal(task_of("question_answering").loss(logits, inputs, counts), theirs)


def test_start_and_end_are_counted_apart() -> None:
    logits, inputs, _ = case("question_answering")
    task = task_of("question_answering")
    equal, apart = task.loss(logits, inputs, (4, 4)), task.loss(logits, inputs, (4, 8))
    only_end = {**inputs, "start_positions": torch.full((8,), IGNORED)}
    assert float(equal - apart) == pytest.approx(float(task.loss(logits, only_end, (4, 8))), rel=1e-5)


def test_classification_metrics_by_hand() -> None:
    rows = np.array([[0.5, 1, 0], [1.0, 1, 1], [1.5, 1, 1], [1.0, 1, 0]], dtype=np.float64)
    task = task_for(job_of("text_classification", "csv", metric="f1"), DataSizes(num_labels=2))
    metrics = task.metrics(rows, Labels(np.array([0, 1, 0, 0])))
    # one hit of class 1 among two guesses and one true: precision 1/2, recall 1; matthews (1*2 - 1*0) / sqrt(2*1*3*2)
    assert metrics == pytest.approx({"loss": 1.0, "accuracy": 0.75, "f1": 2 / 3, "matthews": 2 / 12**0.5})
    assert task.main_metric == "f1"


def test_language_metrics_by_hand() -> None:
    rows = np.array([[2.0, 4, 3], [4.0, 2, 0]], dtype=np.float64)
    metrics = task_of("language_modeling").metrics(rows, Labels(None))
    assert metrics == pytest.approx({"loss": 1.0, "perplexity": np.e, "accuracy": 0.5})


def test_a_diverged_loss_has_a_finite_perplexity() -> None:
    metrics = task_of("language_modeling").metrics(np.array([[1e6, 1, 0]]), Labels(None))
    assert np.isfinite(metrics["perplexity"])


def test_regression_metrics_by_hand() -> None:
    rows = np.array([[0.0, 1, 1.0], [1.0, 1, 2.0], [2.0, 1, 10.0]], dtype=np.float64)
    metrics = task_of("text_classification").metrics(rows, Labels(np.array([1.0, 3.0, 4.0])))
    # centred: (-10, -7, 17) / 3 and (-5, 1, 4) / 3, whose product is 111 and whose squares are 438 and 42
    assert metrics == pytest.approx({"loss": 1.0, "pearson": 111 / (438 * 42) ** 0.5, "spearman": 1.0})


@pytest.mark.parametrize(
    ("kind", "source", "task", "expected"),
    [
        ("image_classification", "digits", None, "accuracy"),
        ("text_classification", "glue", "cola", "matthews"),
        ("text_classification", "glue", "mrpc", "f1"),
        ("text_classification", "glue", "stsb", "pearson"),
        ("question_answering", "squad", None, "f1"),
        ("language_modeling", "text", None, "perplexity"),
    ],
)
def test_each_task_has_its_own_metric(kind: str, source: str, task: str | None, expected: str) -> None:
    sizes = DataSizes(num_labels=2, regression=task == "stsb")
    assert task_for(job_of(kind, source, glue_task=task), sizes).main_metric == expected


@pytest.mark.parametrize("kind", SIZES)
def test_a_metric_of_another_task_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"task\.metric is 'bleu'; this task offers"):
        task_for(job_of(kind, "csv", metric="bleu"), SIZES[kind])
