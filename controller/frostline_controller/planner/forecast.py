"""The planner's answer for a job without a cluster, as `frostline plan` and `api.plan` show it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from frostline_contract.job import Job
from frostline_contract.job.automatic import Settled, at_size, sizes_to_try, with_settled
from frostline_contract.mesh import in_words
from frostline_controller.decisions.initial import check_initial_units
from frostline_controller.planner.advice import Advice, advise, at_other_sizes, units_at
from frostline_controller.planner.assumed import Hardware, assumed_inputs, hardware_for, unit_profiles, value_bytes
from frostline_controller.planner.by_schedule import ScheduleCost, by_schedule
from frostline_controller.planner.cell_advice import GridAdvice, advise_cells, is_asked
from frostline_controller.planner.describe import as_json, grid_json
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.model_size import ModelSize, model_size
from frostline_controller.planner.numerics import settle
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.planner.program_picture import program_picture
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.tensor.advice import SharingAdvice, advise_sharing
from frostline_controller.planner.timed_step import timed_step


@dataclass(frozen=True)
class Forecast:
    """The plans of a job for several numbers of devices.

    Attributes:
        job, size: the job and its model's size.
        hardware: the assumed figures of a device.
        measured: measurements of a run, used in place of assumed figures; None: there are none.
        plans: one for each number of devices.
        advice: the micro-batch size with the least predicted step; None where `grid` advises on it.
        settled: why the job's `auto` would become these numbers; empty where the job gives all of them.
        grid: the micro-batch size and number of token cells with the least predicted step; None where sequences cannot be
            computed in cells, or for more devices than grids are planned for.
    """

    job: Job
    size: ModelSize
    hardware: Hardware
    measured: MeasuredProfile | None
    plans: tuple["DevicePlan", ...]
    advice: Advice | None
    settled: str = ""
    grid: GridAdvice | None = None

    def sharing(self, one: "DevicePlan") -> SharingAdvice:
        """Return the predicted effect of tensor parallelism and of sharded state on one of the plans."""
        return advise_sharing(self.job, one.inputs, value_bytes(self.job, self.hardware)[0])

    def as_json(self) -> dict[str, Any]:
        """Return the output of `frostline plan --json` (docs/run-directory.md)."""
        return {
            "version": 1,
            "job": self.job.name,
            "model": {**asdict(self.size), "num_units": self.size.num_units},
            "assumptions": {
                "unit_profile": "measured" if self.measured else "analytic",
                "hardware": self.hardware.name,
                "teraflops": self.hardware.teraflops,
            },
            "plans": [
                {
                    "devices": one.devices,
                    "freeze_point": one.inputs.freeze_point,
                    **as_json(one.planned),
                    "by_schedule": [{**asdict(cost), "bubble_share": cost.bubble_share} for cost in one.by_schedule],
                    "by_freeze_point": [{"freeze_point": point, **_step_json(at)} for point, at in one.walk],
                    "sharing": self.sharing(one).as_json(),
                }
                for one in self.plans
            ],
            "micro_batch_size": {"job": self.job.training.micro_batch_size, **self._advised_size()},
            "token_cells": grid_json(self.grid) if self.grid is not None else None,
            "settled": {"reduction_leaves": self.job.training.reduction_leaves, "reason": self.settled},
        }

    def _advised_size(self) -> dict[str, Any]:
        """Return the advised micro-batch size as plain data."""
        if self.grid is not None:
            return {"advised": self.grid.best.micro_batch_size, "reason": self.grid.reason}
        assert self.advice is not None
        return {"advised": self.advice.best, "reason": self.advice.reason}


@dataclass(frozen=True)
class DevicePlan:
    """The plan for a number of devices.

    Attributes:
        devices: number of devices.
        inputs: the planner's inputs.
        planned: the plan at the freeze point that was asked for.
        walk: (freeze point, plan) as layers freeze.
    """

    devices: int
    inputs: PlanInputs
    planned: PlannedPlacement
    walk: list[tuple[int, PlannedPlacement]]

    @cached_property
    def by_schedule(self) -> tuple[ScheduleCost, ...]:
        """The cost of each built-in schedule on the same degrees."""
        return by_schedule(self.planned, self.inputs)

    def picture(self) -> str:
        """Return the planned step as an SVG. Raises ValueError where it has more operations than a picture can show."""
        placement = self.planned.placement
        title = f"{in_words(placement.degrees)}, {placement.schedule}: computations of a planned step of the slowest replica"
        return program_picture(timed_step(placement, self.inputs), title)


def forecast(
    job: Job,
    *,
    devices: Sequence[int] = (),
    freeze_point: int = 0,
    hardware: Hardware | None = None,
    measured: MeasuredProfile | None = None,
) -> Forecast:
    """Return the planner's plans and advice for a job.

    Args:
        job: the job to be planned.
        devices: numbers of equal devices to plan for; none: the job's workers.
        freeze_point: units before it are frozen; 0: those that the job freezes from step 1.
        hardware: the assumed figures of a device; None: those of `hardware_for`.
        measured: measurements of a run, used in place of assumed figures.

    Raises:
        ValueError: the model's size is not known here, no placement fits, or the freeze point is outside the model.
    """
    size, assumed = model_size(job), hardware or hardware_for(job, bool(devices))
    settled = settled_by_arithmetic(job, size, assumed, max(devices, default=job.placement.workers), measured)
    job = with_settled(job, settled) if settled is not None else job
    plans = []
    for count in devices or [job.placement.workers]:
        inputs = assumed_inputs(job, size, assumed, count, _frozen(job, size, freeze_point), measured)
        plans.append(DevicePlan(count, inputs, _plan(job, inputs, assumed), walk(inputs)))
    advice, grid = _advice(job, size, assumed, plans[0].inputs, measured)
    return Forecast(job, size, assumed, measured, tuple(plans), advice, settled.reason if settled is not None else "", grid)


def _plan(job: Job, inputs: PlanInputs, hardware: Hardware) -> PlannedPlacement:
    """Return the plan. Raises NothingFits, whose message also says what would fit if tensors or state were shared out."""
    try:
        return make_plan(inputs)
    except NothingFits as refusal:
        shared = advise_sharing(job, inputs, value_bytes(job, hardware)[0]).lines()
        raise NothingFits("\n".join([str(refusal), *shared])) from None


def settled_by_arithmetic(
    job: Job, size: ModelSize, hardware: Hardware, workers: int, measured: MeasuredProfile | None
) -> Settled | None:
    """Return the numbers for the job's `auto` by assumed or given unit costs (a run uses its own); None for a job without `auto`.

    Args:
        job: the job.
        size: the model's size.
        hardware: the assumed figures of a device.
        workers: number of workers.
        measured: measurements of a run, used in place of assumed figures; None: there are none.
    """
    if not job.training.automatic:
        return None
    sizes = sizes_to_try(job.training, workers)
    known = {measured.micro_batch_size: measured.units} if measured else {}
    profiles = {at: units_at(known, at) if known else unit_profiles(job, size, hardware, at) for at in sizes}
    return settle(job, assumed_inputs(at_size(job, sizes[0]), size, hardware, workers, _frozen(job, size, 0), measured), profiles)


def _frozen(job: Job, size: ModelSize, freeze_point: int) -> int:
    """Return the freeze point to plan for; 0 stands for that of step 1. Raises ValueError for initial units that do not fit."""
    check_initial_units(job.initial_units, size.num_units)
    lowest, initial = job.lowest_freeze_point(size.num_units), job.initial_freeze_point(size.num_units)
    return max(freeze_point, lowest) if freeze_point else initial


def walk(inputs: PlanInputs) -> list[tuple[int, PlannedPlacement]]:
    """Return (freeze point, plan) pairs as layers freeze: the initial units alone, a quarter, half and two thirds of the blocks.

    The later plans assume a run that began with the first plan's shape.
    """
    blocks, begin = inputs.num_units - 2, inputs.never_learnt
    points = dict.fromkeys(round(blocks * share) + (share > 0) for share in (0, 0.25, 0.5, 0.67))
    first = make_plan(replace(inputs, freeze_point=begin, start_pp_degree=None))
    start = first.placement
    later = replace(inputs, start_pp_degree=start.pp_degree, start_dp_degree=start.dp_degree)
    fitting = [point for point in points if begin < point < inputs.num_units - 1]
    return [(begin, first), *((point, make_plan(replace(later, freeze_point=point))) for point in fitting)]


def _advice(
    job: Job, size: ModelSize, hardware: Hardware, inputs: PlanInputs, measured: MeasuredProfile | None
) -> tuple[Advice | None, GridAdvice | None]:
    """Return the advised micro-batch size, or the advised pair of it and a grid where sequences can be computed in cells.

    Unit costs of other sizes are predicted from the measured size or from up to three analytic ones.

    Args:
        job: the job.
        size: the model's size.
        hardware: the assumed figures of a device.
        inputs: the planner's inputs.
        measured: measurements of a run; None: there are none.
    """
    batch_size = job.training.batch_size
    sizes = sorted({1, job.training.micro_batch_size, batch_size})
    profiles = {measured.micro_batch_size: measured.units} if measured else {
        at: unit_profiles(job, size, hardware, at) for at in sizes
    }  # fmt: skip
    if not is_asked(job, len(inputs.members)):
        return advise(inputs, batch_size, profiles), None
    others = at_other_sizes(inputs, batch_size, profiles)
    return None, advise_cells(inputs, size.sequence, hardware.fixed_seconds, others)


def _step_json(planned: PlannedPlacement) -> dict[str, Any]:
    placement = planned.placement
    shape = {name: getattr(placement, name) for name in ("degrees", "virtual_stages", "schedule", "use_cache")}
    return {**shape, "stage_bounds": list(placement.stage_bounds), "step_seconds": planned.cost.total_seconds}
