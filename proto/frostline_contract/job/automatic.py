"""Fields that a run settles by itself, once: micro-batch size and leaves (docs/protocols.md 1.1).

They are numerics: `auto` says that the run chooses them before its first step, from what its machine measures. From then on the
job that it follows has numbers there, and nothing chooses again: neither a resume, nor a replay, nor a changed release.
"""

from collections.abc import Mapping

from frostline_contract.job.model import Job
from frostline_contract.job.section import AUTO
from frostline_contract.job.training import TrainingSection
from frostline_contract.record import Frozen

MOST_MICRO_BATCHES_A_WORKER = 8
"""Smaller micro-batches than this makes are not tried: a pipeline is full long before, and each costs a call of every kernel."""


class Settled(Frozen):
    """The numbers in place of `auto`. reason: why these, for people."""

    micro_batch_size: int
    reduction_leaves: int
    reason: str = ""


def with_settled(job: Job, settled: Settled) -> Job:
    """The job with numbers where it said `auto`; what it said in numbers stays. Raises ValueError where they make no job."""
    return with_numbers(job, {name: getattr(settled, name) for name in job.training.automatic})


def with_numbers_of(offered: Job, followed: Job) -> Job:
    """A changed job for a run that has settled: its `auto` is what the run follows, so it changes nothing."""
    return with_numbers(offered, {name: getattr(followed.training, name) for name in offered.training.automatic})


def at_size(job: Job, micro_batch_size: int) -> Job:
    """A job that can be measured at this micro-batch size: one leaf, and no shape that asks for more."""
    return with_numbers(job, {"micro_batch_size": micro_batch_size, "reduction_leaves": 1}, placed=False)


def sizes_to_try(training: TrainingSection, workers: int) -> tuple[int, ...]:
    """Micro-batch sizes that may be chosen, ascending: those that cut the batch into a power of two, or the job's own.

    A power of two, because leaves are one: then no leaf has more micro-batches than another.
    """
    if training.micro_batch_size != AUTO:
        return (training.micro_batch_size,)
    least = training.reduction_leaves if training.reduction_leaves != AUTO else 1
    most = max(least, MOST_MICRO_BATCHES_A_WORKER * (1 << (workers - 1).bit_length()))
    counts = [1 << power for power in range(training.batch_size.bit_length()) if least <= 1 << power <= most]
    return tuple(sorted({-(-training.batch_size // count) for count in counts}))


def with_numbers(job: Job, values: Mapping[str, int], placed: bool = True) -> Job:
    """The job checked again with other numbers in `training`. placed: its pinned and scheduled shapes must fit them."""
    if not values:
        return job
    raw = job.model_dump()
    raw["training"].update(values)
    if not placed:
        raw["placement"].update(dp_degree=None)
        raw["reshapes"] = ()
    return Job.model_validate(raw)
