"""A planned step on paper: when each operation of a placement's slowest replica begins and ends, by the cost model's seconds."""

import numpy as np

from frostline_contract.plan import Placement
from frostline_contract.schedule_figures import Timed, timeline
from frostline_contract.schedules import schedule_named
from frostline_controller.planner.cost import CostModel, replica_micro_batches
from frostline_controller.planner.inputs import PlanInputs, replica_speeds


def paper_step(placement: Placement, inputs: PlanInputs) -> list[Timed]:
    """Computations and sends, until the last rank has ended; what follows (exchange, vote, update) is not in it."""
    shape, bounds = placement.shape, placement.stage_bounds
    speeds = replica_speeds(inputs, placement.workers, shape)
    counts = replica_micro_batches(inputs, placement.leaf_bounds)
    slowest = max(range(shape.dp_degree), key=lambda r: (counts[r] / speeds[r], -r))
    forward, backward = _rank_seconds(placement, inputs, speeds[slowest])
    first_learning = sum(bound <= inputs.freeze_point for bound in bounds[1:])
    degrees = (shape.pp_degree, shape.virtual_stages, counts[slowest], len(placement.slices) or 1, first_learning)
    schedule = schedule_named(placement.schedule)
    orders = [schedule.operations(pp_rank, *degrees) for pp_rank in range(shape.pp_degree)]
    return timeline(orders, forward, backward, shape.virtual_stages)


def _rank_seconds(placement: Placement, inputs: PlanInputs, speed: float) -> tuple[list[float], list[float]]:
    """(forward, backward) of a micro-batch by pipeline rank, through all its stages, sending included: as `cost.step_cost`."""
    shape = placement.shape
    model = CostModel(inputs, placement.use_cache).of_depth(shape.pp_degree)
    bounds = np.asarray(placement.stage_bounds)
    low, high = bounds[:-1], bounds[1:]
    sends = model.sends(low, high) if shape.pp_degree > 1 else np.zeros(len(low))
    ahead = model.compute - model.backward
    forward = (ahead[high] - ahead[low]) / speed + sends / 2
    backward = (model.backward[high] - model.backward[low]) / speed + sends / 2
    stages = [shape.stages_of(pp_rank) for pp_rank in range(shape.pp_degree)]
    return [float(forward[own].sum()) for own in stages], [float(backward[own].sum()) for own in stages]
