"""The best static placement: every shape and micro-batch size, costed by the planner, and which of them are worth measuring."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from frostline_contract.job import Job
from frostline_contract.statistics import SizeProfiles, UnitProfile
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.numerics import measured_inputs
from frostline_controller.planner.search import make_plan

CAP_MICRO_BATCHES = 4
"""The cap is set where a step has so many micro-batches: the fewest that fill a pipeline of four."""
CAP_DEVICES = 3
CAP_ROOM = 1.02
PRUNE = 1.3
"""What is predicted to take more than this many times the least predicted seconds is not measured: so far apart the cost model's
errors do not bring two placements. The page tells how many were left out, and how far predictions were off."""
LEANER = 0.995


@dataclass(frozen=True)
class Candidate:
    """A static placement at a micro-batch size. predicted_seconds: a step on devices of the benchmark's speed."""

    pp_degree: int
    dp_degree: int
    micro_batch_size: int
    predicted_seconds: float
    peak_bytes: int

    @property
    def name(self) -> str:
        return f"pp{self.pp_degree}-dp{self.dp_degree}-mb{self.micro_batch_size}"

    @property
    def workers(self) -> int:
        return self.pp_degree * self.dp_degree

    def settings(self, batch_size: int) -> list[str]:
        """What pins it, as `--set` has it; with as few leaves as its replicas need."""
        count = math.ceil(batch_size / self.micro_batch_size)
        return [
            f"training.micro_batch_size={self.micro_batch_size}",
            f"training.reduction_leaves={leaves_for(self.dp_degree, count)}",
            "training.numerics=fast",
            f"placement.pp_degree={self.pp_degree}",
            f"placement.dp_degree={self.dp_degree}",
            f"placement.workers={self.workers}",
        ]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def leaves_for(dp_degree: int, num_microbatches: int) -> int:
    """The fewest leaves, a power of two, that so many replicas share; no more than there are micro-batches."""
    return min(1 << (dp_degree - 1).bit_length(), 1 << (num_microbatches.bit_length() - 1))


def shapes(devices: int) -> list[tuple[int, int]]:
    """Every pipeline depth and number of replicas that so many devices hold."""
    return [(pp, dp) for pp in range(1, devices + 1) for dp in range(1, devices // pp + 1)]


def memory_cap(job: Job, measured: SizeProfiles) -> int:
    """The cap in bytes: what the leanest placement of the unfrozen model on three devices needs, and two hundredths more.

    Args:
        job: the task's, with nothing frozen.
        measured: unit costs by micro-batch size.

    Raises:
        ValueError: two devices hold as little: then no such cap exists for the task.
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
    """The least peak of a shape, found by asking for a little less until nothing fits; infinite where the shape is none."""
    least, inputs = math.inf, _pinned(base, size, units, pp, dp, job)
    while inputs is not None:
        section = inputs.placement.model_copy(update={"worker_memory_bytes": int(least * LEANER) if least < math.inf else None})
        try:
            least = make_plan(replace(inputs, placement=section)).cost.peak_bytes
        except ValueError:
            break
    return least


def _pinned(base: PlanInputs, size: int, units: tuple[UnitProfile, ...], pp: int, dp: int, job: Job) -> PlanInputs | None:
    """The planner's inputs for one shape; None where it has more replicas than micro-batches, or more stages than units."""
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
    """Every static placement that fits, quickest predicted first.

    Args:
        job: the task's, with nothing frozen and fast numerics; its placement.worker_cpus is the devices' speed.
        measured: unit costs by micro-batch size, of a whole processor's time.
        devices: how many there are.
        cap: bytes of each; None: no cap.
    """
    base, found = measured_inputs(job, measured, None), []
    base = replace(base, placement=base.placement.model_copy(update={"worker_memory_bytes": cap}))
    for profile in measured.profiles:
        for pp, dp in shapes(devices):
            inputs = _pinned(base, profile.micro_batch_size, profile.units, pp, dp, job)
            if inputs is None:
                continue
            try:
                cost = make_plan(inputs).cost
            except ValueError:  # does not fit
                continue
            found.append(Candidate(pp, dp, profile.micro_batch_size, cost.total_seconds, int(cost.peak_bytes)))
    return sorted(found, key=lambda one: one.predicted_seconds)


def worth_measuring(found: Sequence[Candidate]) -> list[Candidate]:
    """Those whose predicted step is not so much longer than the least predicted that no error of the prediction explains it."""
    if not found:
        return []
    least = min(one.predicted_seconds for one in found)
    return [one for one in found if one.predicted_seconds <= PRUNE * least]


def best_of(measured: Mapping[str, float | None], found: Sequence[Candidate]) -> Candidate:
    """The candidate with the least measured seconds a step. Raises ValueError where none could be measured."""
    taken = [one for one in found if measured.get(one.name) is not None]
    if not taken:
        raise ValueError(f"none of {len(found)} static placements could be measured")
    return min(taken, key=lambda one: measured[one.name] or math.inf)
