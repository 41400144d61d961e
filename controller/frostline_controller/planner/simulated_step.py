"""A simulated step: begin and end of each operation of a placement's slowest replica, and the bytes that its ranks hold.

The closed form ranks many plans; where slices differ, or a quota halts workers, it can be off by a quarter either way, so the few
best are simulated.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from frostline_contract.operations import Kind, Operation
from frostline_contract.plan import Placement
from frostline_contract.schedule_figures import End, Timed, at_once, held_at_most, timed
from frostline_contract.schedules import Schedule, schedule_named
from frostline_contract.shape import ParallelShape
from frostline_controller.planner.cost import CostModel, StepCost, contention_seconds, replica_micro_batches, step_cost
from frostline_controller.planner.inputs import PlanInputs, replica_speeds
from frostline_controller.planner.leaves import slowest_replica
from frostline_controller.planner.quota import HaltedRanks, spread_offsets
from frostline_controller.planner.split_costs import first_learning, split_seconds
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.groups import ranks_at_home
from frostline_controller.planner.tensor.traffic import Axes

MOST_OPERATIONS = 60_000
"""Most operations of a step that is simulated; in a longer step the fill matters little, and the closed form suffices."""
QUOTA_TURNS = 6
"""Simulations of a step on workers with a quota, whose periods begin at other moments in each; the mean counts."""

BEFORE_THE_VOTE = ("forward", "backward", "prefix_recompute", "cache_fetch", "p2p", "bubble", "exchange", "optimizer")
"""Parts of the critical pipeline rank's step (`cost.PARTS`)."""


def simulated_step(
    model: CostModel,
    stage_bounds: Sequence[int],
    shape: ParallelShape,
    schedule: str,
    slices: tuple[int, ...],
    micro_batches: int,
    speed: float = 1.0,
    end: End = at_once,
) -> list[Timed]:
    """Return the timed operations of a replica until its last pipeline rank has ended; exchange, vote and update not included.

    Args:
        model: the cost model.
        stage_bounds: shape.num_stages + 1 unit indices.
        shape: the degrees and virtual stages.
        schedule: name of the schedule.
        slices: cells of each slice; () for a single slice.
        micro_batches: of the replica.
        speed: of the replica's slowest member.
        end: the end of each rank's work, where something halts ranks.
    """
    bounds = np.asarray(stage_bounds)
    seconds = model.cells.of_stages(model, bounds[:-1], bounds[1:], slices, speed)
    learning = first_learning(model.inputs, bounds)
    split = split_seconds(model, bounds[:-1], bounds[1:], slices, seconds.backward, speed)
    by_kind = {
        Kind.FORWARD: seconds.forward, Kind.BACKWARD: seconds.backward,
        Kind.INPUT_GRADIENT: split.input, Kind.WEIGHT_GRADIENT: split.weights,
    }  # fmt: skip

    def lasts(_: int, operation: Operation) -> float:
        stage = operation.stage
        if stage < learning:
            return float(seconds.forward[stage].sum())
        return float(by_kind[operation.kind][stage, operation.slice])

    return timed(_orders(shape, schedule, slices, micro_batches, learning), lasts, end)


def turns_of(inputs: PlanInputs) -> int:
    """Return how often a step is simulated for its mean time."""
    return 1 if inputs.quota is None else 2 * QUOTA_TURNS


def can_be_simulated(inputs: PlanInputs, num_stages: int, micro_batches: int, slices: Sequence[int]) -> bool:
    """Return whether a replica's step has few enough operations to be simulated; a longer one is costed in closed form."""
    return turns_of(inputs) * 2 * num_stages * micro_batches * max(1, len(slices)) <= MOST_OPERATIONS


def simulated_memory(
    model: CostModel,
    stage_bounds: Sequence[int],
    shape: ParallelShape,
    schedule: str,
    slices: tuple[int, ...],
    micro_batches: int,
) -> np.ndarray:
    """Return the most bytes of activations that each pipeline rank holds, with each slice's share by its tokens.

    Args:
        model: the cost model.
        stage_bounds, shape, schedule, slices: as in `simulated_step`.
        micro_batches: of a replica.

    Returns:
        float64 of shape (pp_degree,).
    """
    bounds, inputs = np.asarray(stage_bounds), model.inputs
    shares = inputs.share_of_slices(slices or (inputs.token_cells,))
    kept, split = model.kept_bytes(bounds[:-1], bounds[1:]), np.add.reduceat(_split_bytes(inputs), bounds[:-1])

    def keeps(operation: Operation) -> float:
        """Return the bytes kept between the two parts of a split backward."""
        return float(split[operation.stage]) * shares[operation.slice]

    orders = _orders(shape, schedule, slices, micro_batches, first_learning(inputs, bounds))
    return np.array(
        [held_at_most(order, lambda operation: float(kept[operation.stage]) * shares[operation.slice], keeps) for order in orders]
    )


def _split_bytes(inputs: PlanInputs) -> np.ndarray:
    return np.array([float(unit.split_bytes) for unit in inputs.units])


def _orders(
    shape: ParallelShape, schedule: str, slices: tuple[int, ...], micro_batches: int, learning: int
) -> list[list[Operation]]:
    degrees = (shape.pp_degree, shape.virtual_stages, micro_batches, max(1, len(slices)), learning)
    return _orders_of(schedule_named(schedule), *degrees)


@lru_cache(maxsize=32)
def _orders_of(schedule: Schedule, pp_degree: int, *degrees: int) -> list[list[Operation]]:
    return [schedule.operations(pp_rank, pp_degree, *degrees) for pp_rank in range(pp_degree)]


def simulated_cost(
    model: CostModel,
    stage_bounds: tuple[int, ...],
    leaf_bounds: tuple[int, ...],
    shape: ParallelShape,
    schedule: str,
    speeds: list[float],
    slices: tuple[int, ...],
) -> StepCost:
    """Return `step_cost`, with the simulated step's bubble and memory where there are cells, split backwards or quotas.

    Args:
        model: the cost model.
        stage_bounds, shape, schedule, slices: as in `simulated_step`.
        leaf_bounds: dp_degree + 1 leaf indices.
        speeds: the speed of each replica's slowest member.
    """
    closed = step_cost(model, stage_bounds, leaf_bounds, shape, schedule, speeds, slices)
    inputs = model.inputs
    counts = replica_micro_batches(inputs, leaf_bounds)
    is_plain = inputs.token_cells == 1 and not schedule_named(schedule).splits
    is_short = can_be_simulated(inputs, shape.num_stages, max(counts), slices)
    if shape.pp_degree == 1 or not is_short or (is_plain and inputs.quota is None):
        return closed
    peak = closed.peak_bytes if is_plain else _simulated_peak(model, stage_bounds, leaf_bounds, shape, schedule, slices)
    slowest = slowest_replica(counts, speeds)
    gradients = np.bincount(
        shape.pp_rank_of_stage(np.arange(shape.num_stages)), np.diff(model.gradient_bytes[list(stage_bounds)])
    )
    after = model.exchange(gradients, leaf_bounds) + model.optimizer(gradients) / speeds[slowest]
    way = (stage_bounds, shape, schedule, slices, counts[slowest], speeds[slowest])
    seconds = _mean_seconds(model, way, after.tolist(), closed.parts["vote"])
    before_the_vote = sum(closed.parts[name] for name in BEFORE_THE_VOTE) - model.tie_seconds(shape.pp_degree)
    bubble = closed.parts["bubble"] + seconds - closed.parts["vote"] - before_the_vote
    parts = closed.parts | {"bubble": max(0.0, bubble)}
    busy = sum(parts[name] for name in BEFORE_THE_VOTE if name != "exchange")
    parts["contention"] = contention_seconds(model, sum(counts), shape.dp_degree, shape.world_size, busy)
    return replace(closed, total_seconds=sum(parts.values()), parts=parts, peak_bytes=peak)


def _mean_seconds(model: CostModel, way: tuple[Any, ...], after: list[float], vote: float) -> float:
    """Return the seconds of a simulated step; with a quota, the mean over several offsets of the ranks' periods.

    Args:
        model: the cost model.
        way: arguments of `simulated_step`.
        after: seconds of each rank's exchange and update.
        vote: seconds of the vote.
    """
    quota, ranks = model.inputs.quota, len(after)
    if quota is None:
        return _seconds(model, way, after, vote, at_once)
    found = []
    for offsets in spread_offsets(quota, ranks, QUOTA_TURNS):
        halted = HaltedRanks(quota, offsets)
        # The quotas that are left at a step's start are those which the step before has left.
        halted.go_on(_seconds(model, way, after, vote, halted.end))
        found.append(_seconds(model, way, after, vote, halted.end))
    return sum(found) / len(found)


def _seconds(model: CostModel, way: tuple[Any, ...], after: list[float], vote: float, end: End) -> float:
    """Return the seconds of one simulated step, with the vote.

    Args:
        model, way, after, vote: as in `_mean_seconds`.
        end: the end of each rank's work.
    """
    ends = [0.0] * len(after)
    for one in simulated_step(model, *way, end=end):
        ends[one.pp_rank] = max(ends[one.pp_rank], one.end)
    voting = max(end(pp_rank, ends[pp_rank], seconds) for pp_rank, seconds in enumerate(after))
    return max(end(pp_rank, voting, vote) for pp_rank in range(len(after)))


def _simulated_peak(
    model: CostModel,
    stage_bounds: tuple[int, ...],
    leaf_bounds: tuple[int, ...],
    shape: ParallelShape,
    schedule: str,
    slices: tuple[int, ...],
) -> float:
    """Return the bytes of the fullest worker. Arguments as in `simulated_cost`."""
    bounds, owners = np.asarray(stage_bounds), shape.pp_rank_of_stage(np.arange(shape.num_stages))
    fixed = model.stage_bytes(bounds[:-1], bounds[1:], 0, leaf_bounds, max(1, len(slices)))
    held = simulated_memory(model, stage_bounds, shape, schedule, slices, max(replica_micro_batches(model.inputs, leaf_bounds)))
    return float((np.bincount(owners, fixed) + held).max()) + model.inputs.base_bytes


def placement_cost(placement: Placement, inputs: PlanInputs) -> StepCost:
    """Return the cost of a given placement, e.g. of the current one under a new freeze point.

    Members that the inputs no longer name count with speed 1.
    """
    inputs = of_groups(placement, inputs)
    speeds = replica_speeds(inputs, placement.workers, placement.shape)
    model = CostModel(inputs, placement.use_cache).of_shape(placement.pp_degree, placement.dp_degree)
    bounds, groups = (placement.stage_bounds, placement.leaf_bounds), replace(placement.shape, tp_columns=1, tp_depth=1)
    return simulated_cost(model, *bounds, groups, placement.schedule, speeds, placement.slices)


def of_groups(placement: Placement, inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with the placement's own ways of sharing, and with the costs on one member of its groups."""
    ways = {"shard": placement.shard, "tensor_rows": placement.tensor_rows}
    if any(getattr(inputs.placement, name) != way for name, way in ways.items()):
        inputs = replace(inputs, placement=inputs.placement.model_copy(update=ways))
    shape, known = placement.shape, {member.worker_id: member for member in inputs.members}
    groups = [placement.workers[first : first + shape.tp_degree] for first in range(0, len(placement.workers), shape.tp_degree)]
    at_home = ranks_at_home([known.get(worker) for worker in group] for group in groups)
    return in_groups_as_built(inputs, Axes(shape.tp_columns, shape.tp_depth), at_home)
