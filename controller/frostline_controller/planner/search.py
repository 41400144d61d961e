"""The planner's search: `make_plan` returns the best placement for its inputs, among all shapes that fit.

Rule of the choice. Objective "throughput": the least predicted seconds a sample; ties go to fewer workers, then to fewer
stages. Objective "cost": the fewest workers whose step is at most COST_TOLERANCE slower than the reference, which is the step
of the run on the shape and with the frozen units of its start (or the best step now, if that is slower). So the savings of
freezing are handed back as workers, and a run never becomes slower than it started. Workers outside the shape are spares.
"""

from dataclasses import replace

from frostline_contract.shape import ParallelShape
from frostline_controller.planner.best_simulated import best_simulated
from frostline_controller.planner.caching import cache_verdict
from frostline_controller.planner.candidates import Candidate, bound_of_replicas, candidates_of, price_of, seconds_of
from frostline_controller.planner.cost import CostModel, replica_micro_batches, step_cost
from frostline_controller.planner.cuts import PartitionTable, StageCosts
from frostline_controller.planner.frozen_units import plan_frozen_units
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.leaves import deal_evenly
from frostline_controller.planner.pipetransformer_plan import pipetransformer_plan
from frostline_controller.planner.placing import Alternative, PlannedPlacement, finish
from frostline_controller.planner.refusal import refusal
from frostline_controller.planner.shapes import ShapeLimits, dp_choices, shape_limits
from frostline_controller.planner.shared_as_needed import plan_shared_as_needed
from frostline_controller.planner.simulated_step import simulated_cost
from frostline_controller.planner.without_bubbles import without_bubbles

COST_TOLERANCE = 0.05
"""Most time that a step with objective "cost" may take beyond the reference, as a share of it."""
ALTERNATIVES = 8
"""Most other shapes that are listed with a plan."""


def make_plan(inputs: PlanInputs, below: float = float("inf")) -> PlannedPlacement:
    """Return the best placement. Pure: equal inputs give equal plans.

    Args:
        inputs: the planner's inputs; with `prefix_whole` set, cuts of that kind alone are tried.
        below: seconds per sample that a plan must beat.

    Raises:
        NothingFits: no shape fits (the text has the memory needed and the cap), or no plan takes less than `below`.
    """
    if inputs.prefix_whole is not None or inputs.freeze_point == 0 or inputs.placement.planner == "paper_greedy":
        return _plan(inputs, below)
    return plan_frozen_units(inputs, below, _plan)


def _plan(inputs: PlanInputs, below: float = float("inf")) -> PlannedPlacement:
    """Return the best placement among the cuts that the inputs allow. Arguments and errors as in `make_plan`."""
    if inputs.is_to_be_shared:
        return plan_shared_as_needed(inputs, _plan)
    if inputs.placement.planner == "paper_greedy":
        return pipetransformer_plan(inputs)
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
    if inputs.token_cells > 1 or inputs.quota is not None:
        best, judged = best_simulated(model, candidates, best)
        words += judged
    if is_for_cost := inputs.placement.objective == "cost":
        best, words = _fewest_workers(model, candidates, best)
    best, why = without_bubbles(
        model, [best] if is_for_cost else candidates, best, lambda one: price_of(model, one, simulated_cost)
    )
    words += why
    return finish(model, best.alternative, best.bounds, best.table.costs, "; ".join([words, *limits.notes]), cache_reason,
                  _others(candidates, best))  # fmt: skip


def least_seconds(inputs: PlanInputs) -> float:
    """Return a lower bound on the seconds a sample of any placement, memory apart; infinite where no shape is allowed."""
    if inputs.prefix_whole is None:
        return min(least_seconds(replace(inputs, prefix_whole=whole)) for whole in (True, False))
    model, limits = CostModel(inputs, cache_verdict(inputs)[0]), shape_limits(inputs)
    return min((bound_of_replicas(model, limits, dp) for dp in dp_choices(inputs, limits)), default=float("inf"))


def _explore(model: CostModel, limits: ShapeLimits, below: float) -> tuple[list[Candidate], Candidate | None]:
    """Return all candidates that may win, and the cheapest; replica counts whose bound cannot win are left out."""
    inputs = model.inputs
    for_cost = inputs.placement.objective == "cost"
    reference = _reference_seconds(inputs) if for_cost else 0.0
    found: list[Candidate] = []
    best, least = None, below
    for bound, dp in sorted((bound_of_replicas(model, limits, dp), dp) for dp in dp_choices(inputs, limits)):
        if bound > max(least, reference) * (1 + (COST_TOLERANCE if for_cost else 1e-9)):
            break
        fresh = candidates_of(model, limits, dp)
        found += fresh
        best = _cheapest(model, [best, *fresh] if best else fresh, below)
        least = seconds_of(model, best) if best is not None else least
    return found, best


def _cheapest(model: CostModel, candidates: list[Candidate], below: float) -> Candidate | None:
    """Return the candidate of least cost, searched by ascending lower bound until no bound can win."""
    best, least = None, below
    for candidate in sorted(candidates, key=lambda c: (c.bound, c.workers, c.pp, c.virtual)):
        if candidate.bound > least * (1 + 1e-9):
            break
        seconds = seconds_of(model, candidate)
        better = seconds < least * (1 - 1e-9)
        tied = best is not None and seconds <= least * (1 + 1e-9) and (candidate.workers, candidate.pp) < (best.workers, best.pp)
        if better or tied:
            best, least = candidate, min(least, seconds)
    return best


def _fewest_workers(model: CostModel, candidates: list[Candidate], best: Candidate) -> tuple[Candidate, str]:
    """Return the choice for objective "cost" (the module's rule); at least placement.min_workers, where there are as many."""
    inputs = model.inputs
    least = seconds_of(model, best)
    reference = max(least, _reference_seconds(inputs))
    limit = reference * (1 + COST_TOLERANCE)
    floor = min(inputs.placement.min_workers, len(inputs.members))
    chosen = best
    for candidate in sorted(candidates, key=lambda c: (c.workers, c.bound)):
        if candidate.workers >= chosen.workers:
            break
        if candidate.workers >= floor and candidate.bound <= limit and seconds_of(model, candidate) <= limit:
            chosen = candidate
    samples = chosen.alternative.cost.samples
    words = (
        f"fewest {inputs.members_are} ({chosen.workers} of {len(inputs.members)}) within {COST_TOLERANCE:.0%} of "
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
