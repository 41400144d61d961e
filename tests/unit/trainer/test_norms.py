"""A gradient's norm depends on its values alone: the kernel is given neither gaps nor odd addresses."""

import pytest
import torch

from frostline_trainer.step import norms
from frostline_trainer.step.alignment import is_aligned


def test_norms_are_taken_of_gradients_without_gaps_at_aligned_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, flat = torch.arange(48.0).view(6, 8), torch.arange(40.0)
    gradients = [(0, matrix[:, 2:5]), (1, flat[3:20]), (2, matrix.t()), (3, flat)]
    given: list[torch.Tensor] = []
    kernel = torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda tensors, *rest: (given.extend(tensors), kernel(tensors, *rest))[1])
    found = norms.gradient_norms(gradients)
    assert all(one.is_contiguous() and is_aligned(one) for one in given)
    assert given[3].data_ptr() == flat.data_ptr(), "what is whole and aligned is not copied"
    assert [float(one) for one in found] == [float(gradient.double().norm()) for _, gradient in gradients]


def test_of_no_gradients_there_are_no_norms() -> None:
    assert norms.gradient_norms([]) == ()
