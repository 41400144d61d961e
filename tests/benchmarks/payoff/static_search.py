"""The best static placement: every shape and micro-batch size, costed by the planner, and which of them are worth measuring."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from frostline_contract.job import Job
from frostline_contract.sharding import NONE, STEP
from frostline_contract.statistics import SizeProfiles, UnitProfile
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.numerics import measured_inputs
from frostline_controller.planner.search import make_plan

CAP_MICRO_BATCHES = 4
"""Micro-batches of a step for which the cap is set: the fewest that fill a pipeline of four."""
CAP_DEVICES = 3
CAP_ROOM = 1.02
PRUNE = 1.3
"""A placement whose predicted seconds exceed the least predicted ones by this factor is not measured: the cost model's errors do
not reach so far. The page states the number of omitted placements and the errors of the predictions."""
LEANER = 0.995
SHARING = ("training.numerics", "training.state_ranges", "placement.shard")
WHOLE = ("training.state_ranges=1", f"placement.shard={NONE}")
"""Settings of jobs whose replicas each have all state."""


@dataclass(frozen=True)
class Candidate:
    """A static placement at a micro-batch size.

    predicted_seconds: of a step on devices of the benchmark's speed. shares_state: whether replicas share out moments and sums of
    gradients (`placement.shard: step`), which exact numerics alone can.
    """

    pp_degree: int
    dp_degree: int
    micro_batch_size: int
    predicted_seconds: float
    peak_bytes: int
    shares_state: bool = False

    @property
    def name(self) -> str:
        return f"pp{self.pp_degree}-dp{self.dp_degree}-mb{self.micro_batch_size}{'-shared' * self.shares_state}"

    @property
    def workers(self) -> int:
        return self.pp_degree * self.dp_degree

    def settings(self, batch_size: int) -> list[str]:
        """Return the settings, in the form of `--set`, that pin the placement, with as few leaves as its replicas need."""
        count = math.ceil(batch_size / self.micro_batch_size)
        shared = ("exact", self.dp_degree, STEP) if self.shares_state else ("fast", 1, NONE)
        return [
            f"training.micro_batch_size={self.micro_batch_size}",
            f"training.reduction_leaves={leaves_for(self.dp_degree, count)}",
            *(f"{name}={value}" for name, value in zip(SHARING, shared, strict=True)),
            f"placement.pp_degree={self.pp_degree}",
            f"placement.dp_degree={self.dp_degree}",
            f"placement.workers={self.workers}",
        ]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def leaves_for(dp_degree: int, num_microbatches: int) -> int:
    """Return the least number of leaves, a power of two, for so many replicas; at most the number of micro-batches."""
    return min(1 << (dp_degree - 1).bit_length(), 1 << (num_microbatches.bit_length() - 1))


def shapes(devices: int) -> list[tuple[int, int]]:
    """Return every (pipeline depth, number of replicas) that fits on so many devices."""
    return [(pp, dp) for pp in range(1, devices + 1) for dp in range(1, devices // pp + 1)]


def memory_cap(job: Job, measured: SizeProfiles) -> int:
    """Return the cap in bytes: the need of the leanest placement of the unfrozen model on three devices, and two hundredths more.

    Args:
        job: the task's job, with nothing frozen.
        measured: unit costs by micro-batch size.

    Raises:
        ValueError: the model fits on two devices under this cap: then no cap of this kind exists for the task.
    """
    size = math.ceil(job.training.batch_size / CAP_MICRO_BATCHES)
    units = {one.micro_batch_size: one.units for one in measured.profiles}[size]
    base = measured_inputs(job, measured, None)
    least = {devices: min(_leanest(base, size, units, *shape, job) for shape in shapes(devices)) for devices in (2, CAP_DEVICES)}
    cap = int(least[CAP_DEVICES] * CAP_ROOM)
    if cap >= least[2]:
        raise ValueError(
            f"{job.name}: two devices hold the unfrozen model in {least[2]:,.0f} bytes, and three in {least[CAP_DEVICES]:,.0f}: "
            "no memory cap makes three necessary"
        )
    return cap


def _leanest(base: PlanInputs, size: int, units: tuple[UnitProfile, ...], pp: int, dp: int, job: Job) -> float:
    """Return the least peak of a shape, found by lowering the limit a little until nothing fits; infinite if the shape is
    impossible."""
    least, inputs = math.inf, _pinned(base, size, units, pp, dp, job)
    while inputs is not None:
        section = inputs.placement.model_copy(update={"worker_memory_bytes": int(least * LEANER) if least < math.inf else None})
        try:
            least = make_plan(replace(inputs, placement=section)).cost.peak_bytes
        except ValueError:
            break
    return least


def _pinned(base: PlanInputs, size: int, units: tuple[UnitProfile, ...], pp: int, dp: int, job: Job) -> PlanInputs | None:
    """Return the planner's inputs for one shape; None if it has more replicas than leaves, or more stages than units."""
    count = math.ceil(job.training.batch_size / size)
    leaves = leaves_for(dp, count)
    if dp > leaves or pp > len(units):
        return None
    section = base.placement.model_copy(update={"pp_degree": pp, "dp_degree": dp, "initial_pp_degree": None})
    return replace(
        base, units=units, micro_batch_size=size, num_microbatches=count, reduction_leaves=leaves, placement=section,
        members=base.members[: pp * dp],
    )  # fmt: skip


def candidates(job: Job, measured: SizeProfiles, devices: int, cap: int | None) -> list[Candidate]:
    """Return every static placement that fits, in the order of predicted seconds.

    Args:
        job: the task's job, with nothing frozen and fast numerics.
        measured: unit costs by micro-batch size, on a device of the job's speed.
        devices: number of devices.
        cap: memory of each device in bytes; None: no cap.
    """
    base, found = measured_inputs(job, measured, None), []
    base = replace(base, placement=base.placement.model_copy(update={"worker_memory_bytes": cap}))
    for profile, (pp, dp) in product(measured.profiles, shapes(devices)):
        size = profile.micro_batch_size
        for inputs in _ways(_pinned(base, size, profile.units, pp, dp, job), dp):
            try:
                cost = make_plan(inputs).cost
            except ValueError:  # does not fit
                continue
            found.append(Candidate(pp, dp, size, cost.total_seconds, int(cost.peak_bytes), inputs.is_sharded))
            break
    return sorted(found, key=lambda one: one.predicted_seconds)


def _ways(inputs: PlanInputs | None, dp_degree: int) -> list[PlanInputs]:
    """Return the inputs of a shape as they are, and then for replicas that share their state out, which saves memory and no time;
    none for an impossible shape."""
    if inputs is None or dp_degree == 1:
        return [] if inputs is None else [inputs]
    section = inputs.placement.model_copy(update={"shard": STEP})
    return [inputs, replace(inputs, placement=section, state_ranges=dp_degree, exact_numerics=True)]


def worth_measuring(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose predicted step is at most PRUNE times the least: errors of the prediction reach no farther."""
    if not found:
        return []
    least = min(one.predicted_seconds for one in found)
    return [one for one in found if one.predicted_seconds <= PRUNE * least]


def best_of(measured: Mapping[str, float | None], found: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least measured seconds a step. Raises ValueError if none could be measured."""
    taken = [one for one in found if measured.get(one.name) is not None]
    if not taken:
        raise ValueError(f"none of {len(found)} static placements could be measured")
    return min(taken, key=lambda one: measured[one.name] or math.inf)
