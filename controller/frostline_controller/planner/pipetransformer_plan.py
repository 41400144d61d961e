"""The planner `paper_greedy` (placement.planner): the pipeline shrinks by the paper's rule, and freed workers become replicas.

Units are whole blocks, so for the rule a block's parameters are divided between its halves as in a transformer (attention 1, MLP
2). Stages are then cut by the same greedy fill over whole units, with at least one trainable unit each.
"""

from frostline_contract.shape import ParallelShape
from frostline_controller.planner.caching import cache_verdict
from frostline_controller.planner.cost import CostModel, even_slices, step_cost
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.leaves import deal_evenly
from frostline_controller.planner.pipetransformer_rule import (
    ACTIVE_ONLY,
    compressed_stages,
    greedy_bounds,
    largest_stage,
    weights,
)
from frostline_controller.planner.placing import Alternative, PlannedPlacement, finish
from frostline_controller.planner.shapes import schedules_for, shape_limits


def pipetransformer_plan(inputs: PlanInputs) -> PlannedPlacement:
    """Return the paper's placement: K by compression from the start's depth, and workers / K replicas, at most one a leaf.

    The start's depth is start_pp_degree, else the current one, else placement.initial_pp_degree, else the largest power of
    two that workers and units allow. Pins and elasticity switches hold as for the optimal planner.

    Raises:
        NothingFits: the placement exceeds the memory cap; the paper's rule does not model memory beyond parameters.
        ValueError: the pinned schedule cannot run the shape.
    """
    workers, limits = len(inputs.members), shape_limits(inputs)
    start = inputs.start_pp_degree or (inputs.current.pp_degree if inputs.current else None)
    start = start or inputs.placement.initial_pp_degree or 1 << (min(workers, inputs.num_units).bit_length() - 1)
    start = min(start, inputs.num_units)
    pp = limits.pp or min(_compressed(inputs, start), workers // (limits.dp or 1), inputs.trainable_units)
    dp = limits.dp or min(workers // pp, inputs.most_replicas)
    choices = schedules_for(inputs, pp, dp)
    if not choices:
        raise ValueError(f"schedule {inputs.placement.schedule} cannot run pp {pp} x dp {dp}; set placement.schedule: auto")
    schedule = choices[0][0] if choices[0][1] == 1 else "1f1b"
    use_cache, cache_reason = cache_verdict(inputs)
    model = CostModel(inputs, use_cache).of_shape(pp, dp)
    bounds = _unit_bounds(inputs, pp)
    shape = ParallelShape(pp, dp)
    cost = step_cost(model, bounds, deal_evenly(inputs.reduction_leaves, dp), shape, schedule, [1.0] * dp)
    if cost.peak_bytes > inputs.memory_cap:
        raise NothingFits(
            f"paper_greedy takes pp {pp}, which needs {int(cost.peak_bytes):,} bytes a worker, and {inputs.memory_cap_words}; "
            "set placement.planner: optimal, or raise placement.worker_memory_bytes"
        )
    reason = "; ".join(
        [f"paper_greedy: K {start} -> {pp} with {inputs.freeze_point} of {inputs.num_units} units frozen", *limits.notes]
    )
    return finish(
        model, Alternative(shape, schedule, cost, even_slices(inputs, pp, schedule)), bounds, None, reason, cache_reason
    )


def _compressed(inputs: PlanInputs, start: int) -> int:
    """Return K by the paper's rule, with embedding, half-blocks and head weighed by the units' parameters."""
    sizes = [unit.parameter_bytes for unit in inputs.units]
    if len(sizes) < 3:
        return min(start, len(sizes))
    halves = [share for size in sizes[1:-1] for share in (size / 3, size * 2 / 3)]
    frozen_layers = max(0, inputs.freeze_point - 1)
    at_start = weights(sizes[0], halves, sizes[-1], 0, ACTIVE_ONLY)
    now = weights(sizes[0], halves, sizes[-1], frozen_layers, ACTIVE_ONLY)
    return compressed_stages(start, now, largest_stage(at_start, start))


def _unit_bounds(inputs: PlanInputs, stages: int) -> tuple[int, ...]:
    """Return the stage bounds of the greedy fill over whole units, moved where a stage would have no trainable unit."""
    sizes = [0.0 if i < inputs.freeze_point else unit.parameter_bytes / 1e6 for i, unit in enumerate(inputs.units)]
    wanted, bounds = greedy_bounds(sizes, stages), [0]
    for stage in range(1, stages):
        least = max(bounds[-1], inputs.freeze_point) + 1
        most = inputs.num_units - (stages - stage)
        bounds.append(min(max(wanted[stage], least), most))
    return (*bounds, inputs.num_units)
