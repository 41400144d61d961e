"""The probe's arithmetic: 1 - CKA by its definition, the changes that it does not see, references that do not pair."""

import pytest
import torch

from frostline_trainer.step.probing import change, likeness, mean_output, output_changes


def cka(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the linear CKA by features: ||Y'X||^2 / (||X'X|| ||Y'Y||) of the centred rows (Kornblith et al. 2019)."""
    x, y = before - before.mean(dim=0), after - after.mean(dim=0)
    return float((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm()))


def rows(seed: int) -> torch.Tensor:
    return torch.randn(16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def moved(before: torch.Tensor, after: torch.Tensor) -> float:
    return change(likeness(before).tolist(), likeness(after).tolist())


def test_the_change_is_one_less_cka():
    first = rows(1)
    for share in (0.01, 0.3, 1.0):
        second = first + share * rows(2)
        assert moved(first, second) == pytest.approx(1.0 - cka(first, second), abs=1e-12)  # sums of 400 terms near 1
    assert moved(first, first.clone()) == 0.0


def test_scale_shift_and_rotation_are_no_change():
    first = rows(1)
    turn, _ = torch.linalg.qr(torch.randn(24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
    assert moved(first, 7.0 * first @ turn + 5.0) == pytest.approx(0.0, abs=1e-12)  # rounding of a rotation in float64
    assert moved(first, first[torch.randperm(16, generator=torch.Generator().manual_seed(4))]) > 0.2, "samples swapped places"


def test_outputs_that_are_all_alike_have_no_likeness():
    flat = torch.ones(4, 3, dtype=torch.float64)
    assert likeness(flat).tolist() == [0.0] * 10
    assert moved(flat, flat) == 0.0 and moved(flat, rows(1)[:4, :3]) == 1.0


def test_padding_is_left_out_of_a_samples_mean():
    output = torch.tensor([[[1.0], [3.0], [99.0]], [[2.0], [4.0], [6.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert mean_output(output, {"attention_mask": mask}).tolist() == [[2.0], [4.0]]
    assert mean_output(output, {}).tolist() == [[pytest.approx(103 / 3)], [4.0]]


def test_a_reference_of_other_samples_compares_nothing():
    now = [likeness(rows(unit)).tolist() for unit in (1, 2)]
    assert output_changes([], now) == () == output_changes(now, [])
    assert output_changes([one[:-1] for one in now], now) == ()
    assert output_changes(now, now) == (0.0, 0.0, 0.0), "two units and the head"
