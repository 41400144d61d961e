"""Whole steps over NCCL's rules, by the trainer's own code: nothing waits for ever, and every schedule and shape has the oracle's
bits (docs/protocols.md 1.17)."""

from collections.abc import Iterator

import pytest

from frostline_contract.operations import Kind, Operation
from frostline_contract.schedules import BUILT_IN, Schedule
from tests.exact_cases import Case
from tests.hand_made_plans import Layout
from tests.integration.test_exactness import differences
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network

LAYOUTS = (
    ("gpt2_tied", Layout(2, 1)),
    ("llama", Layout(3, 1)),
    ("gpt2_tied", Layout(2, 2)),
    ("vit", Layout(3, 1, 1, "gpipe")),
    ("gpt2_tied", Layout(2, 1, 2, "gpipe")),
    ("llama", Layout(2, 2, 2, "interleaved_1f1b")),
    ("bert_classification", Layout(1, 3)),
)
"""Every built-in schedule, with and without virtual stages, replicas and a tied matrix; the model freezes on the way."""


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.mark.parametrize(("family", "layout"), LAYOUTS, ids=lambda value: str(value))
def test_steps_over_nccls_rules_end_with_the_oracles_bits(family: str, layout: Layout, network: Network) -> None:
    case = Case(family, dropout=0.0)
    assert differences(case, run_simulated(case, layout, network)) == []
    assert network.operations > case.steps, "nothing went over the simulated NCCL"


def split(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
    """1F1B whose backwards are split: gradients of weights come as late as the leaves' order lets them."""
    operations: list[Operation] = []
    late: list[Operation] = []
    for one in BUILT_IN["1f1b"].operations(pp_rank, pp_degree, virtual_stages, num_microbatches):
        if one.kind is Kind.FORWARD:
            operations.append(one)
            continue
        operations.append(one._replace(kind=Kind.INPUT_GRADIENT))
        late.append(one._replace(kind=Kind.WEIGHT_GRADIENT))
        if len(late) > 1:
            operations.append(late.pop(0))
    return operations + late


@pytest.mark.parametrize(
    ("family", "layout"), [("gpt2_tied", Layout(2, 2, 1, "split")), ("vit", Layout(3, 1, 1, "split"))], ids=str
)
def test_a_split_backward_has_the_bits_of_a_whole_one(
    family: str, layout: Layout, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "split", Schedule(split))
    for case in (Case(family, dropout=0.0), Case(family, dropout=0.0, activation_checkpointing=True)):
        assert differences(case, run_simulated(case, layout, network)) == []
