"""Audits of tensor-parallel groups whose members own their tiles: a group computes again in each other's places, so that a broken
member is found also where the run has one replica."""

from dataclasses import replace

import pytest
import torch

from frostline_trainer.replication.audited_step import ComputationDiffers
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation, StepGradients
from tests.exact_cases import Case
from tests.hand_made_plans import Layout, grouped
from tests.unit.trainer.test_engine_auditing import AUDITED, broken, computed, of_members
from tests.wide_rows import wide_rows

CASE = Case("gpt2_tied", freezing=(), dropout=0.0, audit_every=2, inner_tiles=4)
PAIR, FOUR = Layout(1, 1, tp_columns=2), Layout(1, 1, tp_columns=4)
PIPELINE, REPLICAS = Layout(2, 1, tp_columns=2), Layout(1, 2, tp_columns=2)
LEVELS, SQUARE = grouped(1, 1, 1, depth=2), grouped(1, 1, 2, depth=2)
LAYOUTS = wide_rows([PAIR, FOUR, PIPELINE, REPLICAS, LEVELS, SQUARE], [FOUR])


def case_of(layout: Layout) -> Case:
    """Return a case with hidden tiles if the layout has levels."""
    return replace(CASE, inner_tiles=2, hidden_tiles=2) if layout.tp_depth > 1 else CASE


@pytest.mark.parametrize("freeze_point", [0, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_members_agree_in_each_others_places(layout: Layout, freeze_point: int) -> None:
    found = computed(layout, AUDITED, freeze_point, case=case_of(layout))
    assert [isinstance(one, StepGradients) and one.audited for one in found] == [True] * len(found), found


@pytest.mark.parametrize("what", ["gradient", "activation"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_a_member_computes_wrong_once_is_found_and_the_member_named(layout: Layout, what: str) -> None:
    culprit = len(layout.numbers) - 1
    for one in computed(layout, AUDITED, wrong=broken(culprit, what), case=case_of(layout)):
        assert isinstance(one, ComputationDiffers), one
        assert one.workers == (f"w{culprit}",)
        assert one.detail["certain"] == "yes"


ROWS = replace(CASE, inner_tiles=2, row_tiles=2)
DIVIDED = [
    (ROWS, replace(PAIR, tensor_rows="split")),
    (replace(ROWS, state_ranges=3), replace(PAIR, tensor_rows="split")),
    (replace(ROWS, state_ranges=3), replace(REPLICAS, tensor_rows="split", shard="step")),
]
"""Groups that divide samples: with pieces by tile, with whole weights on each member, and with shared out moments."""


@pytest.mark.parametrize(("case", "layout"), DIVIDED, ids=str)
def test_members_with_other_samples_agree_and_one_that_computes_wrong_is_named(case: Case, layout: Layout) -> None:
    found = computed(layout, AUDITED, case=case)
    assert [isinstance(one, StepGradients) and one.audited for one in found] == [True] * len(found), found
    culprit = len(layout.numbers) - 1
    for one in computed(layout, AUDITED, wrong=broken(culprit, "gradient"), case=case):
        assert isinstance(one, ComputationDiffers), one
        assert one.workers == (f"w{culprit}",)


@pytest.mark.parametrize(("layout", "neighbours"), [(PAIR, "0"), (FOUR, "02"), (LEVELS, "0"), (SQUARE, "3")], ids=str)
def test_a_broken_member_of_the_only_group_is_among_those_named(layout: Layout, neighbours: str) -> None:
    """Its own tiles are computed again by the member before it, and it computes those of the next: both differ. neighbours: the
    numbers of these two."""
    for one in computed(layout, AUDITED, wrong=broken(1, "gradient", lasting=True), case=case_of(layout)):
        assert isinstance(one, ComputationDiffers), one
        assert set(one.workers) <= {"w1", *(f"w{number}" for number in neighbours)} and "w1" in one.workers
        assert one.detail["certain"].startswith("no"), "each repeats its own bits"


@pytest.mark.parametrize("layout", [PAIR, LEVELS, SQUARE], ids=str)
def test_a_wrong_sum_over_tiles_is_found_and_all_of_the_group_named(layout: Layout) -> None:
    """A broken core multiplies wrong: its node is in the sum that all members have."""

    def wrong(contexts: list[RunContext]) -> None:
        layer = next(module for module in contexts[1].cut.units[1].modules() if type(module).__name__ == "TiledRow")
        layer.register_forward_pre_hook(lambda module, entry: (entry[0] * (1 + 2**-10),))

    for one in computed(layout, AUDITED, wrong=wrong, case=case_of(layout)):
        assert isinstance(one, ComputationDiffers), one
        assert one.workers == tuple(f"w{number}" for number in layout.numbers)


@pytest.mark.parametrize("layout", [FOUR, SQUARE], ids=str)
def test_weights_and_gradients_are_those_of_a_step_without_an_audit(layout: Layout) -> None:
    def totals(generation: Generation) -> list[torch.Tensor]:
        before = [parameter.detach().clone() for unit in generation.context.cut.units for parameter in unit.parameters()]
        found = generation.compute(AUDITED)
        after = [parameter.detach() for unit in generation.context.cut.units for parameter in unit.parameters()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        return [tensor.clone() for tensor in found.totals.values()]

    case = case_of(layout)
    audited = of_members(layout, AUDITED, 0, lambda contexts: None, totals, case)
    plain = of_members(layout, AUDITED, 0, lambda contexts: None, totals, replace(case, audit_every=0))
    for one, other in zip(audited, plain, strict=True):
        assert isinstance(one, list) and isinstance(other, list) and one
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))
