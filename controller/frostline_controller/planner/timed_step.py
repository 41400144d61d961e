"""A planned step, simulated: begin and end of each operation of a placement's slowest replica, by the cost model's seconds."""

from frostline_contract.plan import Placement
from frostline_contract.schedule_figures import Timed
from frostline_controller.planner.cost import CostModel, replica_micro_batches
from frostline_controller.planner.inputs import PlanInputs, replica_speeds
from frostline_controller.planner.leaves import slowest_replica
from frostline_controller.planner.simulated_step import of_groups, simulated_step


def timed_step(placement: Placement, inputs: PlanInputs, replica: int | None = None) -> list[Timed]:
    """Return the computations of a replica, with their sends, until its last rank has ended; exchange, vote and update are not
    included.

    Args:
        placement: the placement.
        inputs: the planner's inputs.
        replica: dp rank of the replica; None: the slowest replica.
    """
    shape = placement.shape
    speeds = replica_speeds(inputs, placement.workers, shape)
    counts = replica_micro_batches(inputs, placement.leaf_bounds)
    shown = slowest_replica(counts, speeds) if replica is None else replica
    model = CostModel(of_groups(placement, inputs), placement.use_cache).of_shape(shape.pp_degree, shape.dp_degree)
    way = (shape, placement.schedule, placement.slices, counts[shown], speeds[shown])
    return simulated_step(model, placement.stage_bounds, *way)
