"""A worker's profile: the run's profile of its kind of device, or a measured one."""

import pytest
import torch

from frostline_contract.job import load_job
from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_trainer import profile
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.device_clock import processors_of
from tests.benchmarks.subjects import DIGITS_JOB

UNIT = UnitProfile(
    forward_seconds=7.0, backward_seconds=9.0, parameter_bytes=1, optimizer_bytes=2, activation_bytes=3, output_bytes=4
)

LANGUAGE_JOB = DIGITS_JOB.parents[1] / "language_modeling/stdlib_gpt2.yaml"


@pytest.fixture(scope="module")
def context() -> RunContext:
    return build_context(load_job(DIGITS_JOB, ["training.device=cpu", "placement.worker_memory_bytes=12345"]))


def known(context: RunContext, **changes: object) -> WorkerProfile:
    fields = {"micro_batch_size": context.micro_batch_size, "units": (UNIT,) * context.num_units, "device": "cpu"}
    return WorkerProfile(**{**fields, **changes})


def test_a_joiner_measures_nothing_where_the_run_has_a_profile_of_its_kind(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "profile_units", lambda context: pytest.fail("it measured"))
    found = profile.worker_profile(context, [known(context, device="a GPU"), known(context, memory_bytes=99)])
    assert found == known(context, memory_bytes=12345), "its memory is its own"


@pytest.mark.parametrize("other", [{"device": "a GPU"}, {"micro_batch_size": 1}, {"units": (UNIT,)}])
def test_it_measures_where_the_run_has_none_that_fits(context: RunContext, other: dict[str, object]) -> None:
    found = profile.worker_profile(context, [known(context, **other)])
    assert len(found.units) == context.num_units
    assert all(0 < unit.forward_seconds < UNIT.forward_seconds for unit in found.units)


def still() -> float:
    """A clock on which nothing takes time."""
    return 0.0


def test_a_share_of_a_processor_takes_longer_by_what_the_processor_did(context: RunContext) -> None:
    """A measurement at full speed within a quota's period still has only its share of a processor."""
    assert all(unit.forward_seconds == unit.backward_seconds == 0 for unit in profile.profile_units(context, still).units)
    slow = build_context(load_job(DIGITS_JOB, ["training.device=cpu", "placement.worker_cpus=0.25"]))
    found = profile.profile_units(slow, still)
    assert all(unit.forward_seconds > 0 and unit.backward_seconds > 0 for unit in found.units)
    assert found.optimizer_seconds_per_byte > 0


def test_a_share_of_a_processor_is_measured_by_as_much_computing_as_a_whole_one() -> None:
    """A quota's clock counts the standstill too: a tenth of a second by it would be three or four turns, the luck of a moment."""
    shared = build_context(load_job(DIGITS_JOB, ["training.device=cpu", "placement.worker_cpus=0.1"]))
    forwards: list[int] = []
    with shared.cut.units[1].register_forward_hook(lambda *_: forwards.append(1)):
        block = profile.profile_units(shared).units[1]
    turns = len(forwards) // 2 - 1  # in turns with a split backward; one more of each counts bytes
    computing = 0.1 * turns * (block.forward_seconds + block.backward_seconds)
    assert turns == profile.REPETITIONS_MAX or computing > profile.SECONDS_ENOUGH / 3


def test_an_update_is_measured_and_changes_nothing(context: RunContext) -> None:
    before = [parameter.clone() for unit in context.cut.units for parameter in unit.parameters()]
    found = profile.profile_units(context)
    assert 1e-13 < found.optimizer_seconds_per_byte < 1e-5
    after = [parameter for unit in context.cut.units for parameter in unit.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not context.moments
    assert all(parameter.grad is None for parameter in after)


def test_units_that_compute_cells_are_measured_cell_by_cell() -> None:
    sizes = ["training.micro_batch_size=2", "training.reduction_leaves=4", "model.config.n_layer=2"]
    settings = [*sizes, "training.token_cells=[8,16,40]", "training.device=cpu"]
    context = build_context(load_job(LANGUAGE_JOB, settings))
    found = profile.profile_units(context)
    embedding, *others = found.units
    assert embedding.cell_forward_seconds == ()
    assert all(len(unit.cell_forward_seconds) == len(unit.cell_backward_seconds) == 3 for unit in others)
    assert all(seconds > 0 for unit in others for seconds in (*unit.cell_forward_seconds, *unit.cell_backward_seconds))
    assert all(parameter.grad is None for unit in context.cut.units for parameter in unit.parameters())


@pytest.mark.parametrize(("share", "threads", "processors"), [("null", 1, None), ("0.4", 1, 0.4), ("3", 2, 2.0), ("1.5", 2, 1.5)])
def test_no_more_processors_compute_than_there_are_threads(share: str, threads: int, processors: float | None) -> None:
    job = load_job(DIGITS_JOB, [f"placement.worker_cpus={share}", f"training.threads={threads}"])
    assert processors_of(job) == processors
