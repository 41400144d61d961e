"""Whole steps over NCCL's rules, by the trainer's own code: no wait lasts for ever; every schedule and shape has the oracle's
bits (docs/protocols.md 1.17)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from frostline_contract.operations import Operation
from frostline_contract.plan import Plan
from frostline_contract.schedules import BUILT_IN, Schedule
from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.exchange import Levels
from tests import engine_member
from tests.exact_cases import Case
from tests.forming import form_groups
from tests.hand_made_plans import Layout, Segment
from tests.integration.test_exactness import FAMILIES, differences
from tests.simulated_kills import PHASES, kill_over_simulated_nccl
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network
from tests.split_backwards import split_1f1b
from tests.wide_rows import all_wide, wide_rows

LAYOUTS = (
    ("llama", Layout(3, 1)),
    ("gpt2_tied", Layout(2, 2)),
    ("gpt2_tied", Layout(2, 1, 2, "gpipe")),
    ("llama", Layout(2, 2, 2, "interleaved_1f1b")),
    ("bert_classification", Layout(1, 3)),
    ("bert_classification", Layout(4, 1, 1, "zb_h1")),
    ("gpt2_tied", Layout(2, 2, 1, "zb_h2")),
    ("gpt2_tied", Layout(2, 2, 2, "zb_v")),
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


RUN_AHEAD = (
    ("gpt2_tied", "float32", Layout(2, 2)),
    ("vit", "float64", Layout(3, 1, 1, "gpipe")),
    ("llama", "bfloat16", Layout(2, 1, 2, "interleaved_1f1b")),
)
DEATHS = (("gpt2_tied", "schedule", 1), ("bert_classification", "exchange", 2))
"""(family, phase, victim): a sample of the widest tables."""


def case_of(family: str, dtype: str = "float32") -> Case:
    """Return the case without dropout: torch's generator belongs to the process, not to the thread that plays a member."""
    return Case(family, dtype, dropout=0.0, clip_norm=None if dtype == "bfloat16" else 1.0)


@pytest.fixture
def behind() -> Iterator[Network]:
    """Simulated devices that compute nothing before their hosts wait."""
    made = Network(run_ahead=True)
    yield made
    made.close()


@pytest.mark.parametrize(("family", "dtype", "layout"), [*RUN_AHEAD[:2], *all_wide(*RUN_AHEAD[2:])], ids=str)
def test_steps_on_devices_that_are_behind_have_the_oracles_bits(family: str, dtype: str, layout: Layout, behind: Network) -> None:
    case = case_of(family, dtype)
    assert differences(case, run_simulated(case, layout, behind)) == []
    assert behind.operations_ahead > 1000, "the devices were not behind their hosts"


JOURNEY = (
    Segment(Layout(2, 1, 2, "zb_v"), 2),
    Segment(Layout(2, 2, 1, "zb_h2", (2, 0, 3, 1)), 4),
    Segment(Layout(1, 3, 1, "1f1b", (3, 1, 0)), 5, 1),
    Segment(Layout(1, 1, 1, "1f1b", (3,)), 6, 3),
)
"""Workers join and leave; each generation is connected at its switch."""


def test_a_journey_through_shapes_over_nccls_rules_ends_with_one_workers_bits(behind: Network) -> None:
    case = case_of("gpt2_tied")
    runs = run_simulated(case, JOURNEY, behind)
    (alone,) = run_simulated(case, [Segment(Layout(1, 1), case.steps)], behind)
    assert differences(case, [alone]) == []
    assert (runs[3].units, runs[3].digest) == (alone.units, alone.digest)
    assert all(alone.losses[step] == loss for run in runs for step, loss in run.losses.items())


@pytest.mark.parametrize(("family", "phase", "victim"), [*DEATHS[:1], *all_wide(*DEATHS[1:])], ids=str)
def test_a_death_in_a_step_over_nccls_rules_changes_no_bit(family: str, phase: str, victim: int) -> None:
    """Members block until interrupted, aborts leave garbage, a plan omits the dead member; the step is computed again."""
    assert kill_over_simulated_nccl(case_of(family), Layout(2, 2), 3, victim, phase) == []


@pytest.mark.wide
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_death_in_a_step_changes_no_bit(family: str, victim: int, phase: str) -> None:
    assert kill_over_simulated_nccl(case_of(family), Layout(2, 2), 3, victim, phase) == []


@pytest.mark.wide
@pytest.mark.parametrize(
    "layout", [layout for _, layout in LAYOUTS] + [Layout(2, 1), Layout(3, 1, 1, "gpipe"), Layout(4, 1), Layout(1, 4)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_combination_on_devices_that_are_behind(family: str, dtype: str, layout: Layout, behind: Network) -> None:
    case = case_of(family, dtype)
    assert differences(case, run_simulated(case, layout, behind)) == []


@pytest.mark.parametrize("chunk", wide_rows([0, 16], {0}))
def test_bfloat16_boundaries_travel_over_nccls_rules(chunk: int, network: Network) -> None:
    """Also with one chunk of all tokens, for which the head is computed again in the backward."""
    case = Case("gpt2_tied", "mixed_bfloat16", dropout=0.0, loss_chunk_tokens=chunk)
    runs = run_simulated(case, Layout(2, 2), network)
    assert differences(replace(case, loss_chunk_tokens=0), runs) == []


def split(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
    """1F1B with split backwards: gradients of weights are computed as late as the leaves' order permits."""
    return split_1f1b(pp_rank, pp_degree, virtual_stages, num_microbatches, held=1)


@pytest.mark.parametrize(
    ("family", "layout"), [("gpt2_tied", Layout(2, 2, 1, "split")), *all_wide(("vit", Layout(3, 1, 1, "split")))], ids=str
)
def test_a_split_backward_has_the_bits_of_a_whole_one(
    family: str, layout: Layout, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "split", Schedule(split))
    for case in (Case(family, dropout=0.0), Case(family, dropout=0.0, activation_checkpointing=True)):
        assert differences(case, run_simulated(case, layout, network)) == []


@pytest.mark.parametrize(("layout", "machines"), [(Layout(1, 4), "aabb"), *all_wide((Layout(2, 4), "aaaabbbb"))], ids=str)
def test_replicas_that_share_machines_sum_over_two_levels(
    layout: Layout, machines: str, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas have the oracle's bits, though no sum goes over all replicas at once."""
    formed: list[Groups] = []

    def on_machines(plan: Plan, worker_id: str, *arguments: Any, **named: Any) -> Groups:
        groups = form_groups(plan, worker_id, *arguments, machine=machines[plan.participants.index(worker_id)], **named)
        formed.append(groups)
        return groups

    monkeypatch.setattr(engine_member, "form_groups", on_machines)
    case = case_of("vit")
    assert differences(case, run_simulated(case, layout, network)) == []
    assert formed and all(isinstance(groups.replicas, Levels) and "dp" not in groups.lines for groups in formed)
