"""The planner's search: `make_plan` returns the best placement for its inputs, among all shapes that fit.

Rule of the choice. Objective "throughput": the least predicted seconds a sample; ties go to fewer workers, then to fewer
stages. Objective "cost": the fewest workers whose step is at most COST_TOLERANCE slower than the reference, which is the step
of the run on the shape and with the frozen units of its start (or the best step now, if that is slower). So the savings of
freezing are handed back as workers, and a run never becomes slower than it started. Workers outside the shape are spares.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from frostline_contract.schedules import is_folded, schedule_named
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.caching import cache_verdict
from frostline_controller.planner.climbing import Cut, climb
from frostline_controller.planner.cost import CostModel, StepCost, replica_micro_batches, step_cost
from frostline_controller.planner.cuts import PartitionTable, StageCosts
from frostline_controller.planner.groupings import groupings_of, slice_counts
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.leaves import deal_by_speed, deal_evenly
from frostline_controller.planner.paper_plan import paper_greedy_plan
from frostline_controller.planner.placing import Alternative, PlannedPlacement, finish
from frostline_controller.planner.refusal import refusal
from frostline_controller.planner.shapes import (
    ALL_DEGREES_UP_TO,
    ShapeLimits,
    dp_choices,
    pp_choices,
    schedules_for,
    shape_limits,
)  # fmt: skip
from frostline_controller.planner.shared_as_needed import plan_shared_as_needed
from frostline_controller.planner.step_on_paper import paper_cost
from frostline_controller.planner.without_bubbles import without_bubbles

COST_TOLERANCE, ALTERNATIVES = 0.05, 8
JUDGED, JUDGED_WITHIN, IMPROVED_OPERATIONS = 12, 1.5, 60_000
"""Plans run on paper, the largest ratio of their closed form to the least one, and operations on paper to improve a plan."""


@dataclass
class Candidate:
    """A shape with a lower bound (seconds a sample) of its step; its cost is computed only where the bound can still win.

    slices: cells of each slice; () for a single slice.
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


def make_plan(inputs: PlanInputs, below: float = float("inf")) -> PlannedPlacement:
    """Return the best placement. Pure: equal inputs give equal plans. below: seconds a sample that a plan must beat.

    Raises NothingFits where no shape fits, with the memory needed and the cap, or where no plan is below.
    """
    if inputs.is_to_be_shared:
        return plan_shared_as_needed(inputs, make_plan)
    if inputs.placement.planner == "paper_greedy":
        return paper_greedy_plan(inputs)
    use_cache, cache_reason = cache_verdict(inputs)
    model = CostModel(inputs, use_cache)
    limits = shape_limits(inputs)
    candidates, best = _explore(model, limits, below)
    if best is None:
        raise NothingFits(refusal(model, limits) if below == float("inf") else f"no placement takes less than {below} s a sample")
    words = f"least step time of {len(candidates)} shapes"
    priced = sum(candidate.alternative is not None for candidate in candidates)
    if priced < len(candidates):
        words += f", of which {len(candidates) - priced} were ruled out by lower bounds"
    if inputs.token_cells > 1:
        best, judged = _best_on_paper(model, candidates, best)
        words += judged
    if is_for_cost := inputs.placement.objective == "cost":
        best, words = _fewest_workers(model, candidates, best)
    best, why = without_bubbles(model, [best] if is_for_cost else candidates, best, lambda one: _price(model, one, paper_cost))
    words += why
    return finish(model, best.alternative, best.bounds, best.table.costs, "; ".join([words, *limits.notes]), cache_reason,
                  _others(candidates, best))  # fmt: skip


def least_seconds(inputs: PlanInputs) -> float:
    """Return a lower bound on the seconds a sample of any placement, memory apart; infinite where no shape is allowed."""
    model, limits = CostModel(inputs, cache_verdict(inputs)[0]), shape_limits(inputs)
    return min((_least_seconds(model, limits, dp) for dp in dp_choices(inputs, limits)), default=float("inf"))


def _explore(model: CostModel, limits: ShapeLimits, below: float) -> tuple[list[Candidate], Candidate | None]:
    """Return all candidates that may win, and the cheapest; replica counts whose bound cannot win are left out."""
    inputs = model.inputs
    for_cost = inputs.placement.objective == "cost"
    reference = _reference_seconds(inputs) if for_cost else 0.0
    found: list[Candidate] = []
    best, least = None, below
    for bound, dp in sorted((_least_seconds(model, limits, dp), dp) for dp in dp_choices(inputs, limits)):
        if bound > max(least, reference) * (1 + (COST_TOLERANCE if for_cost else 1e-9)):
            break
        fresh = _candidates(model, limits, dp)
        found += fresh
        best = _cheapest(model, [best, *fresh] if best else fresh, below)
        least = _cost(model, best) if best is not None else least
    return found, best


def _least_seconds(model: CostModel, limits: ShapeLimits, dp: int) -> float:
    """Return a lower bound on the seconds a sample of any shape with `dp` replicas; infinite where none is allowed."""
    inputs = model.inputs
    leaf_bounds = deal_evenly(inputs.reduction_leaves, dp)
    longest = max(replica_micro_batches(inputs, leaf_bounds))
    least = float("inf")
    for virtual in {1, inputs.placement.virtual_stages}:
        allowed = [pp for pp in pp_choices(inputs, limits, dp) if pp * virtual <= inputs.trainable_units]
        if allowed:
            depths = np.array(allowed)
            exchange = model.exchange(model.gradient_bytes[-1] / depths, leaf_bounds)
            parts = virtual * inputs.num_slices(2, "1f1b")
            fill = (model.compute[-1] / inputs.speeds[0] + 2 * (depths * virtual - 1) * model.least_send_seconds) / parts
            fill = fill * inputs.quickest
            if inputs.placement.schedule != "auto" and not schedule_named(inputs.placement.schedule).known_figures.fills:
                fill = 0.0
            least = min(least, float((fill + _least_pace(model, depths, longest, virtual) + exchange).min()))
    return least / inputs.samples_of_step(dp)


def _least_pace(model: CostModel, depths: np.ndarray, micro_batches: int, virtual: int) -> np.ndarray:
    """Return, for each depth, the least seconds beyond the fill that the slowest rank computes.

    It has at least an equal share of the work, and at least trainable units / depth units (rounded up), at best the smallest.
    """
    inputs = model.inputs
    trainable = np.sort(np.diff(model.compute)[inputs.freeze_point :])
    smallest = np.concatenate([[0.0], np.cumsum(trainable)])[-(-inputs.trainable_units // depths)]
    return (micro_batches - 1 / virtual) * np.maximum(model.compute[-1] / depths, smallest) / inputs.speeds[0]


def _candidates(model: CostModel, limits: ShapeLimits, dp: int) -> list[Candidate]:
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
            pace = _least_pace(model, np.array(group), longest, virtual)
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


def _cost(model: CostModel, candidate: Candidate) -> float:
    """Return the seconds a sample of a candidate, computed once; infinite where its dealing exceeds the memory cap."""
    if candidate.alternative is None:
        candidate.bounds = candidate.table.bounds(candidate.pp * candidate.virtual)
        # Split backwards keep more than the closed form counts, and a plan that exceeds the memory must be found here.
        splits = schedule_named(candidate.table.costs.schedule).splits
        return _price(model, candidate, paper_cost if splits else step_cost)
    cost = candidate.alternative.cost
    return cost.seconds_per_sample if cost.peak_bytes <= model.inputs.memory_cap else float("inf")


def _price(model: CostModel, candidate: Candidate, costing: Callable[..., StepCost]) -> float:
    """Compute the cost of a candidate with its present bounds and slices. costing: `step_cost` or `paper_cost`."""
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
    return _cost(model, candidate)


def _cheapest(model: CostModel, candidates: list[Candidate], below: float) -> Candidate | None:
    """Return the candidate of least cost, searched by ascending lower bound until no bound can win."""
    best, least = None, below
    for candidate in sorted(candidates, key=lambda c: (c.bound, c.workers, c.pp, c.virtual)):
        if candidate.bound > least * (1 + 1e-9):
            break
        seconds = _cost(model, candidate)
        better = seconds < least * (1 - 1e-9)
        tied = best is not None and seconds <= least * (1 + 1e-9) and (candidate.workers, candidate.pp) < (best.workers, best.pp)
        if better or tied:
            best, least = candidate, min(least, seconds)
    return best


def _best_on_paper(model: CostModel, candidates: list[Candidate], best: Candidate) -> tuple[Candidate, str]:
    """Return the best on paper of the JUDGED candidates with the least closed form, which can be off by a quarter with slices.

    The best of each shape among them is improved on paper (`planner.climbing`).
    """
    limit = _cost(model, best) * JUDGED_WITHIN
    near = [candidate for candidate in candidates if candidate.bound <= limit and _cost(model, candidate) <= limit]
    near = sorted(near, key=lambda c: (_cost(model, c), c.workers, c.pp, len(c.slices)))[:JUDGED]
    shapes = set[tuple[int, int, int]]()
    for candidate in sorted(near, key=lambda c: _price(model, c, paper_cost)):
        if (candidate.pp, candidate.dp, candidate.virtual) not in shapes:
            shapes.add((candidate.pp, candidate.dp, candidate.virtual))
            _improve(model, candidate)
    place = min(range(len(near)), key=lambda place: (_cost(model, near[place]), place))
    return near[place], f", the best {len(near)} of which were run on paper"


def _improve(model: CostModel, candidate: Candidate) -> None:
    """Move the candidate's bounds and regroup its cells as long as that is faster on paper."""
    inputs = model.inputs
    operations = 2 * candidate.pp * candidate.virtual * candidate.table.costs.micro_batches * inputs.token_cells
    if candidate.pp == 1:
        return
    schedule = candidate.table.costs.schedule

    def price(cut: Cut) -> float:
        allowed = schedules_for(inputs, candidate.pp, candidate.dp, max(1, len(cut[1])))
        if (schedule, candidate.virtual) not in allowed:
            return float("inf")
        candidate.bounds, candidate.slices = cut
        return _price(model, candidate, paper_cost)

    free = inputs.placement.slices is None and inputs.num_slices(candidate.pp, schedule) > 1
    found = climb(
        (candidate.bounds, candidate.slices),
        inputs.token_cells,
        inputs.freeze_point + 1,
        price,
        free,
        IMPROVED_OPERATIONS // operations,
    )
    price(found)


def _fewest_workers(model: CostModel, candidates: list[Candidate], best: Candidate) -> tuple[Candidate, str]:
    """Return the choice for objective "cost" (the module's rule); at least placement.min_workers, where there are as many."""
    inputs = model.inputs
    least = _cost(model, best)
    reference = max(least, _reference_seconds(inputs))
    limit = reference * (1 + COST_TOLERANCE)
    floor = min(inputs.placement.min_workers, len(inputs.members))
    chosen = best
    for candidate in sorted(candidates, key=lambda c: (c.workers, c.bound)):
        if candidate.workers >= chosen.workers:
            break
        if candidate.workers >= floor and candidate.bound <= limit and _cost(model, candidate) <= limit:
            chosen = candidate
    samples = chosen.alternative.cost.samples
    words = (
        f"fewest workers ({chosen.workers} of {len(inputs.members)}) within {COST_TOLERANCE:.0%} of "
        f"{reference * samples:.4g} s a step; the best takes {least * samples:.4g} s"
    )
    return chosen, words


def _reference_seconds(inputs: PlanInputs) -> float:
    """Return the seconds a sample of the run at its start: with the units frozen from step 1, on the shape it began with.

    0.0 where that is unknown, or no further unit is frozen.
    """
    pp = inputs.start_pp_degree or (inputs.current.pp_degree if inputs.current else None)
    dp = inputs.start_dp_degree or (inputs.current.dp_degree if inputs.current else None)
    if inputs.freeze_point == inputs.never_learnt or pp is None or dp is None:
        return 0.0
    if pp > inputs.num_units - inputs.never_learnt or dp > inputs.most_replicas:
        return 0.0
    model = CostModel(replace(inputs, freeze_point=inputs.never_learnt)).of_shape(pp, dp)
    leaf_bounds = deal_evenly(inputs.reduction_leaves, dp)
    longest = max(replica_micro_batches(inputs, leaf_bounds))
    table = PartitionTable(StageCosts(model, longest, leaf_bounds, "1f1b", 1), pp, pp)
    if table.bottleneck(pp) == float("inf"):
        return 0.0
    return step_cost(model, table.bounds(pp), leaf_bounds, ParallelShape(pp, dp), "1f1b", [1.0] * dp).seconds_per_sample


def _others(candidates: list[Candidate], best: Candidate) -> tuple[Alternative, ...]:
    """Return the best of the other shapes with a computed cost."""
    costed = [c.alternative for c in candidates if c.alternative is not None and c is not best]
    return tuple(sorted(costed, key=lambda a: a.cost.seconds_per_sample)[:ALTERNATIVES])
