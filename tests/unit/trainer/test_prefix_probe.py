"""The prefix probe: equal bits for all runs whose frozen units compute alike; other bits where a kernel differs."""

from dataclasses import replace

import pytest
import torch

from frostline_trainer.prefix.prefix_probe import probe_prefix
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.unit_state import export_unit, unit_digest
from tests.exact_cases import TASK_OF, Case, build_case
from tests.uneven_kernel import planted


def probed(case: Case, seed: int = 0) -> str:
    """Return the probe's digest for the case's run; with another seed: other samples in the training split, another dropout."""
    context = build_case(case)
    context.job = context.job.model_copy(update={"seed": seed})
    split = context.data.train
    original = split.collate
    if seed:
        split.collate = lambda indices, variants: original([i if i < 0 else len(split) - 1 - i for i in indices], variants)
    return probe_prefix(context)


def states_of(context: RunContext) -> list[bytes]:
    return [unit_digest(export_unit(index, unit, {})) for index, unit in enumerate(context.cut.units)]


@pytest.mark.parametrize("family", sorted(TASK_OF))
def test_every_family_is_probed_and_left_as_it_was(family: str) -> None:
    context = build_case(Case(family, "mixed_bfloat16"))
    before, drawn = states_of(context), torch.get_rng_state()
    assert probe_prefix(context) == probe_prefix(context)
    assert states_of(context) == before and torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None and p.requires_grad for unit in context.cut.units for p in unit.parameters())


@pytest.mark.parametrize("family", ["vit", "bert_classification", "gpt2_tied"])
def test_runs_that_differ_in_what_learns_share_it(family: str) -> None:
    """Sweeps over seeds, optimizers and dropout share one cache."""
    case = Case(family)
    variants = [replace(case, optimizer="sgd"), replace(case, dropout=0.0), replace(case, learning_rate=1e-5)]
    assert {probed(case), probed(case, seed=5), *map(probed, variants)} == {probed(case)}


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_another_kernel_or_precision_shows(dtype: str) -> None:
    with planted():
        uneven = probed(Case("vit", dtype))
    assert uneven != probed(Case("vit", dtype))
    assert probed(Case("vit", dtype)) != probed(Case("vit", "bfloat16"))
