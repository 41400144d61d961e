"""The start-up probe: real units, in the job's precision, one set of bits a machine; and it leaves no trace."""

from dataclasses import replace

import pytest
import torch

from frostline_trainer.process.probe import run_probe
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.unit_kinds import first_of_its_kind
from frostline_trainer.step.unit_state import export_unit, unit_digest
from tests.exact_cases import TASK_OF, Case, build_case
from tests.uneven_kernel import planted


def probed(case: Case) -> str:
    return run_probe(build_case(case))[0]


def states_of(context: RunContext) -> list[bytes]:
    return [unit_digest(export_unit(index, unit, {})) for index, unit in enumerate(context.cut.units)]


@pytest.mark.parametrize("family", sorted(TASK_OF))
def test_every_family_is_probed_and_left_as_it_was(family: str) -> None:
    context = build_case(Case(family, "mixed_bfloat16"))
    before, drawn = states_of(context), torch.get_rng_state()
    first, again = run_probe(context), run_probe(context)
    assert first == again and "mixed_bfloat16" in first[1]
    assert states_of(context) == before and torch.equal(torch.get_rng_state(), drawn) and not context.moments
    assert all(p.grad is None and p.requires_grad for unit in context.cut.units for p in unit.parameters())


def test_what_changes_bits_changes_the_probe() -> None:
    case = Case("gpt2_tied")
    variants = [
        replace(case, dtype="mixed_bfloat16"),
        replace(case, dtype="bfloat16"),
        replace(case, optimizer="sgd"),
        replace(case, dropout=0.0),
        replace(case, loss_chunk_tokens=5),
    ]
    assert len({probed(case), *map(probed, variants)}) == len(variants) + 1


def test_other_weights_are_no_other_machine() -> None:
    """Sweeps over seeds share one probe, and so one cache."""
    context = build_case(Case("vit"))
    before = run_probe(context)
    with torch.no_grad():
        for unit in context.cut.units:
            for parameter in unit.parameters():
                parameter.add_(0.1)
    assert run_probe(context) == before


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_another_kernel_shows(dtype: str) -> None:
    """In the precision that the job computes in: a bfloat16 product that differs does not show in float32's."""
    with planted():
        uneven = probed(Case("vit", dtype))
    assert uneven != probed(Case("vit", dtype))


def test_one_unit_of_each_kind() -> None:
    units = build_case(Case("bert_classification")).cut.units
    assert first_of_its_kind(units) == [0, *[1] * (len(units) - 2), len(units) - 1]
