"""The shapes that may be chosen: each with a lower bound of its step, and with its cost where that is asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from frostline_contract.schedules import is_folded, schedule_named
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.cost import CostModel, StepCost, replica_micro_batches, step_cost
from frostline_controller.planner.cuts import PartitionTable, StageCosts
from frostline_controller.planner.leaves import deal_by_speed, deal_evenly
from frostline_controller.planner.placing import Alternative
from frostline_controller.planner.shapes import ALL_DEGREES_UP_TO, ShapeLimits, pp_choices, schedules_for
from frostline_controller.planner.simulated_step import simulated_cost
from frostline_controller.planner.tried_slices import groupings_of, slice_counts


@dataclass
class Candidate:
    """A shape with a schedule and slices, and a lower bound of its step; its cost is computed only where the bound can still win.

    Attributes:
        bound: least seconds a sample.
        pp, dp, virtual: pipeline depth, replicas, and virtual stages of a rank.
        table: of the cuts, for the candidate's schedule.
        slices: cells of each slice; () for a single slice.
        alternative: the shape with its cost; None: not computed yet.
        bounds: of the stages; () until the cost is computed.
    """

    bound: float
    pp: int
    dp: int
    virtual: int
    table: PartitionTable = field(repr=False)
    slices: tuple[int, ...] = ()
    alternative: Alternative | None = None
    bounds: tuple[int, ...] = ()

    @cached_property
    def shape(self) -> ParallelShape:
        """The candidate's degrees, with the schedule's stages of a rank."""
        return ParallelShape(self.pp, self.dp, self.virtual, folded=is_folded(self.table.costs.schedule))

    @property
    def workers(self) -> int:
        """Number of workers of the shape."""
        return self.pp * self.dp  # not from `shape`: this is read of every candidate, and most never need a shape


def bound_of_replicas(model: CostModel, limits: ShapeLimits, dp: int) -> float:
    """Return a lower bound on the seconds a sample of any shape with `dp` replicas; infinite where none is allowed."""
    inputs = model.inputs
    leaf_bounds = deal_evenly(inputs.reduction_leaves, dp)
    longest = max(replica_micro_batches(inputs, leaf_bounds))
    least = float("inf")
    for virtual in {1, inputs.most_virtual_stages}:
        allowed = [pp for pp in pp_choices(inputs, limits, dp) if pp * virtual <= inputs.trainable_units]
        if allowed:
            depths = np.array(allowed)
            exchange = model.exchange(model.gradient_bytes[-1] / depths, leaf_bounds)
            parts = virtual * inputs.num_slices(2, "1f1b")
            fill = (model.compute[-1] / inputs.speeds[0] + 2 * (depths * virtual - 1) * model.least_send_seconds) / parts
            fill = fill * inputs.quickest
            if inputs.placement.schedule != "auto" and not schedule_named(inputs.placement.schedule).known_figures.fills:
                fill = 0.0
            least = min(least, float((fill + _least_pace(model, depths, longest, parts) + exchange).min()))
    return least / inputs.samples_of_step(dp)


def _least_pace(model: CostModel, depths: np.ndarray, micro_batches: int, parts: int) -> np.ndarray:
    """Return, for each depth, the least seconds beyond the fill that the slowest rank computes; the fill has one of its parts.

    It has at least an equal share of the work, and at least trainable units / depth units (rounded up), at best the smallest.

    Args:
        model: the cost model.
        depths: pipeline depths.
        micro_batches: of a replica.
        parts: virtual stages of a rank times slices of a micro-batch.
    """
    inputs = model.inputs
    trainable = np.sort(np.diff(model.compute)[inputs.freeze_point :])
    smallest = np.concatenate([[0.0], np.cumsum(trainable)])[-(-inputs.trainable_units // depths)]
    return (micro_batches - 1 / parts) * np.maximum(model.compute[-1] / depths, smallest) / inputs.speeds[0]


def candidates_of(model: CostModel, limits: ShapeLimits, dp: int) -> list[Candidate]:
    """Return the candidates of every shape with `dp` replicas that fits the workers and the memory."""
    inputs, found = model.inputs, []
    leaf_bounds = deal_evenly(inputs.reduction_leaves, dp)
    longest = max(replica_micro_batches(inputs, leaf_bounds))
    fastest = inputs.speeds[0]
    by_schedule: dict[tuple[str, int, LinkProfile, int], list[int]] = {}
    for pp in pp_choices(inputs, limits, dp):
        for count in slice_counts(inputs, pp):
            for schedule, virtual in schedules_for(inputs, pp, dp, count):
                by_schedule.setdefault((schedule, virtual, inputs.pipeline_link(pp), count), []).append(pp)
    for (schedule, virtual, _, count), depths in by_schedule.items():
        costs = StageCosts(model.of_shape(depths[0], dp), longest, leaf_bounds, schedule, virtual, fastest, slices=count)
        for group in _table_groups(costs, depths):
            table = PartitionTable(costs, group[-1] * virtual, group[-1])
            pace = _least_pace(model, np.array(group), longest, virtual * count)
            for pp, least in zip(group, pace, strict=True):
                sends = 2 * (pp * virtual - 1) * model.least_send_seconds
                parts = virtual * count
                fill = inputs.quickest * (float(model.compute[-1]) / fastest + sends) / parts if costs.figures.fills else 0.0
                bound = fill + max(float(least), table.bottleneck(pp * virtual))
                if bound < float("inf"):
                    per_sample = bound / inputs.samples_of_step(dp)
                    groupings = groupings_of(costs.model, pp, virtual, longest, count)
                    found += [Candidate(per_sample, pp, dp, virtual, table, slices) for slices in groupings]
    return found


def _table_groups(costs: StageCosts, depths: list[int]) -> list[list[int]]:
    """Return the groups of depths that share a table: one group, or each depth alone where memory in flight depends on it."""
    if costs.figures.from_the_end or len(costs.model.inputs.members) > ALL_DEGREES_UP_TO or costs.unlimited:
        return [depths]
    return [[depth] for depth in depths]


def seconds_of(model: CostModel, candidate: Candidate) -> float:
    """Return the seconds a sample of a candidate, computed once; infinite where its dealing exceeds the memory cap."""
    if candidate.alternative is None:
        candidate.bounds = candidate.table.bounds(candidate.pp * candidate.virtual)
        # Split backwards, and slices of unequal cells, keep more than the closed form counts; a plan that exceeds the memory must
        # be found here.
        costs = candidate.table.costs
        rough = schedule_named(costs.schedule).splits or (len(candidate.slices) > 1 and not costs.unlimited)
        return price_of(model, candidate, simulated_cost if rough else step_cost)
    cost = candidate.alternative.cost
    return cost.seconds_per_sample if cost.peak_bytes <= model.inputs.memory_cap else float("inf")


def price_of(model: CostModel, candidate: Candidate, costing: Callable[..., StepCost]) -> float:
    """Compute the cost of a candidate with its present bounds and slices, and return its seconds (`seconds_of`).

    Args:
        model: the cost model.
        candidate: the candidate; its `alternative` is set.
        costing: `step_cost` or `simulated_cost`.
    """
    inputs = model.inputs
    # As if members were assigned by falling speed: the last member of each replica is its slowest.
    speeds = [inputs.speeds[global_rank] for global_rank in candidate.shape.owners_of(candidate.pp - 1)]
    costs, cost = candidate.table.costs, None
    for dealing in (speeds, [1.0] * candidate.dp):  # by speed; evenly where that needs less memory
        leaf_bounds = deal_by_speed(inputs.reduction_leaves, dealing)
        cost = costing(costs.model, candidate.bounds, leaf_bounds, candidate.shape, costs.schedule, speeds, candidate.slices)
        if cost.peak_bytes <= inputs.memory_cap:
            break
    candidate.alternative = Alternative(candidate.shape, costs.schedule, cost, candidate.slices)
    return seconds_of(model, candidate)
