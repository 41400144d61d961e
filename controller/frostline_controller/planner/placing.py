"""The placement of a chosen shape: its final cut, its workers, its dealing, and the prediction for just this placement."""

from dataclasses import dataclass

from frostline_contract.plan import Placement
from frostline_contract.schedules import schedule_named
from frostline_contract.shape import ParallelShape
from frostline_contract.sharding import shard_problem
from frostline_controller.planner.assignment import assign_workers
from frostline_controller.planner.cost import CostModel, StepCost
from frostline_controller.planner.cuts import StageCosts, refined_bounds
from frostline_controller.planner.inputs import NothingFits, replica_speeds
from frostline_controller.planner.leaves import deal_by_speed
from frostline_controller.planner.simulated_step import simulated_cost


@dataclass(frozen=True)
class Alternative:
    """A shape with its predicted cost; `frostline plan` lists the best ones that were not chosen.

    Attributes:
        schedule: name of the schedule.
        slices: cells of each slice; () for a single slice.
    """

    shape: ParallelShape
    schedule: str
    cost: StepCost
    slices: tuple[int, ...] = ()

    @property
    def workers(self) -> int:
        """Number of workers of the shape."""
        return self.shape.world_size


@dataclass(frozen=True)
class PlannedPlacement:
    """A placement with its prediction.

    Attributes:
        placement: the placement, with the decision on the cache (use_cache).
        cost: the predicted step of the placement.
        spares: workers outside the shape.
        alternatives: the best of the other shapes.
        reason, cache_reason: for people.
        moved_bytes: weights and moments that the reshape moves.
        uncovered_stages: as in `Assignment`.
    """

    placement: Placement
    cost: StepCost
    spares: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    reason: str
    cache_reason: str
    moved_bytes: int = 0
    uncovered_stages: int = 0


def finish(
    model: CostModel,
    chosen: Alternative,
    bounds: tuple[int, ...],
    costs: StageCosts | None,
    reason: str,
    cache_reason: str,
    alternatives: tuple[Alternative, ...] = (),
) -> PlannedPlacement:
    """Return the chosen shape's placement, with its final cut, workers and dealing, and with its prediction.

    Args:
        model: the cost model.
        chosen: the chosen shape.
        bounds: the cut that the search found: num_stages + 1 unit indices.
        costs: the possible stages, from which the cut of the same bottleneck that moves the fewest bytes is tried first; None:
            only `bounds` are used.
        reason, cache_reason: for people; notes on the placement are added to `reason`.
        alternatives: the best of the other shapes.
    """
    if schedule_named(chosen.schedule).figures is None:
        reason += f"; schedule {chosen.schedule} brings no figures: its bubble and memory are counted from its operations"
    inputs = model.inputs
    shape = chosen.shape
    shape.check_fits(inputs.num_units, inputs.freeze_point, inputs.reduction_leaves)
    if problem := shard_problem(inputs.placement.shard, inputs.state_ranges, shape.dp_degree):
        raise ValueError(problem)
    options = [bounds]
    if costs is not None:
        current = inputs.current
        same = current is not None and (current.pp_degree, current.virtual_stages) == (shape.pp_degree, shape.virtual_stages)
        here = current.stage_bounds if same else None
        bottleneck = costs.heaviest(bounds)
        options.insert(0, refined_bounds(costs, shape.num_stages, shape.pp_degree, bottleneck, here))
    results, priced = [], model.of_shape(shape.pp_degree, shape.dp_degree)
    for option in options:
        assignment = assign_workers(inputs, shape, option)
        speeds = replica_speeds(inputs, assignment.workers, shape)
        for dealing in (speeds, [1.0] * shape.dp_degree):
            leaf_bounds = deal_by_speed(inputs.reduction_leaves, dealing)
            cost = simulated_cost(priced, option, leaf_bounds, shape, chosen.schedule, speeds, chosen.slices)
            if cost.peak_bytes <= inputs.memory_cap:
                results.append((option, assignment, leaf_bounds, cost))
                break
    if not results:
        raise NothingFits(
            f"{shape} of {len(inputs.members)} {inputs.members_are} fits by the search's estimate and needs "
            f"{round(cost.peak_bytes):,} bytes a worker once its operations are simulated, and {inputs.memory_cap_words}; raise "
            "placement.worker_memory_bytes, or lower training.micro_batch_size"
        )
    least = min(cost.total_seconds for *_, cost in results)
    option, assignment, leaf_bounds, cost = next(r for r in results if r[3].total_seconds <= least * (1 + 1e-9))
    placement = Placement(
        degrees=shape.degrees, virtual_stages=shape.virtual_stages, stage_bounds=option,
        leaf_bounds=leaf_bounds, workers=assignment.workers, schedule=chosen.schedule, use_cache=model.use_cache,
        predicted_step_seconds=cost.total_seconds, predicted_peak_bytes=round(cost.peak_bytes),
        slices=chosen.slices, shard=inputs.placement.shard,
    )  # fmt: skip
    return PlannedPlacement(placement, cost, assignment.spares, alternatives, reason, cache_reason,
                            assignment.moved_bytes if inputs.current else 0,
                            assignment.uncovered_stages)  # fmt: skip
