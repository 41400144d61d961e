"""Replays a run on a described cluster with the planner that will run there, so that claims at scale are the planner's.

No clock and no random numbers: a run is a freeze history, an interval's length and the inputs of its first plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frostline_contract.plan import Placement
from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.cost import placement_cost
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.verdict import should_reshape


@dataclass(frozen=True)
class SimulatedInterval:
    """One interval of a simulated run. seconds = steps x step_seconds + reshape_seconds."""

    number: int
    freeze_point: int
    pp_degree: int
    dp_degree: int
    use_cache: bool
    steps: int
    step_seconds: float
    samples_per_second: float
    reshape_seconds: float
    seconds: float
    reason: str


@dataclass(frozen=True)
class SimulatedRun:
    """intervals in order. worker_seconds: what the members of each shape cost together."""

    intervals: tuple[SimulatedInterval, ...]
    total_seconds: float
    worker_seconds: float


def analytic_profiles(
    num_blocks: int,
    hidden: int,
    sequence: int,
    micro_batch: int,
    flops_per_second: float,
    vocabulary: int,
    head_positions: int | None = None,
    embedding_parameters: int | None = None,
    bytes_per_value: int = 4,
    moments: int = 2,
    fixed_seconds: float = 0.0,
) -> tuple[UnitProfile, ...]:
    """Unit costs of a transformer from its FLOPs: embedding, blocks, head (num_blocks + 2 units).

    flops_per_second: what a worker achieves, not its peak. A block's forward is 24 h^2 + 4 s h FLOPs a token (matrices, and
    the two attention products), the head's 2 h V a scored position; a backward is twice its forward. vocabulary: V, or the
    number of classes. head_positions: positions that the head scores, default all (1 for a classifier).
    embedding_parameters: default (vocabulary + sequence) * hidden. A block keeps about 17 h values a token for its backward
    (arXiv 2205.05198, section 4, without the attention matrix, which fused kernels do not keep). moments: values of
    optimizer state a parameter. fixed_seconds: overhead of each unit's call.
    """
    tokens = micro_batch * sequence
    scored = micro_batch * (sequence if head_positions is None else head_positions)
    crossing = tokens * hidden * bytes_per_value

    def unit(flops: float, parameters: int, kept_values: float) -> UnitProfile:
        forward = flops / flops_per_second
        weights = parameters * bytes_per_value
        return UnitProfile(
            forward_seconds=forward + fixed_seconds,
            backward_seconds=2 * forward + fixed_seconds,
            parameter_bytes=weights,
            optimizer_bytes=moments * weights,
            activation_bytes=round(kept_values * bytes_per_value),
            output_bytes=crossing,
        )

    embedding = (vocabulary + sequence) * hidden if embedding_parameters is None else embedding_parameters
    block = unit(tokens * (24 * hidden**2 + 4 * sequence * hidden), 12 * hidden**2 + 13 * hidden, 17 * tokens * hidden)
    head = unit(scored * 2 * hidden * vocabulary, hidden * vocabulary + vocabulary + 2 * hidden, scored * (hidden + vocabulary))
    return (unit(tokens * hidden, embedding, tokens * hidden), *[block] * num_blocks, head)


def cluster_members(nodes: int, workers_per_node: int, memory_bytes: int = 0) -> tuple[MemberInfo, ...]:
    """Equal workers on equal nodes; a node is a failure domain."""
    return tuple(
        MemberInfo(f"worker-{node}-{place}", f"node-{node}", memory_bytes)
        for node in range(nodes)
        for place in range(workers_per_node)
    )


def fixed_history(freeze_points: Sequence[int]) -> Callable[[int, int], int]:
    """A policy that follows a list; the last entry holds on."""
    return lambda interval, _current: freeze_points[min(interval, len(freeze_points)) - 1]


def simulate(
    inputs: PlanInputs,
    policy: Callable[[int, int], int],
    num_intervals: int,
    samples_per_interval: int,
) -> SimulatedRun:
    """Run `num_intervals` intervals; interval k (from 1) trains `samples_per_interval` samples at policy(k, current point).

    inputs: as at the start (current None); its members, link, pins and switches hold throughout, steps_left is counted here.
    A new placement is taken where the old one is illegal under the new freeze point, or where should_reshape says that it
    pays; then the interval is charged inputs.measured_reshape_seconds.
    """
    placement: Placement | None = None
    intervals: list[SimulatedInterval] = []
    start: tuple[int, int] | None = None
    freeze_point = inputs.freeze_point
    worker_seconds = 0.0
    for number in range(1, num_intervals + 1):
        freeze_point = policy(number, freeze_point) if inputs.elastic.freeze else inputs.freeze_point
        samples = inputs.samples_of_step(placement.dp_degree if placement else 1)
        left = (num_intervals - number + 1) * samples_per_interval
        now = replace(
            inputs,
            freeze_point=freeze_point,
            current=placement,
            steps_left=-(-left // samples),
            start_pp_degree=start[0] if start else inputs.start_pp_degree,
            start_dp_degree=start[1] if start else inputs.start_dp_degree,
        )
        placement, reason, reshaped = next_placement(now)
        start = start or (placement.pp_degree, placement.dp_degree)
        cost = placement_cost(placement, now)
        steps = -(-samples_per_interval // cost.samples)
        pause = inputs.measured_reshape_seconds if reshaped else 0.0
        seconds = steps * cost.total_seconds + pause
        worker_seconds += seconds * len(placement.workers)
        intervals.append(
            SimulatedInterval(
                number, freeze_point, placement.pp_degree, placement.dp_degree, placement.use_cache, steps,
                cost.total_seconds, cost.samples / cost.total_seconds, pause, seconds, reason,
            )
        )  # fmt: skip
    return SimulatedRun(tuple(intervals), sum(interval.seconds for interval in intervals), worker_seconds)


def next_placement(inputs: PlanInputs) -> tuple[Placement, str, bool]:
    """(placement to go on with, why, whether that is a reshape): make_plan and should_reshape together."""
    planned = make_plan(inputs)
    current = inputs.current
    if current is None:
        return planned.placement, f"start: {planned.reason}", False
    if current.stage_bounds[1] <= inputs.freeze_point and current.shape.num_stages > 1:
        return planned.placement, f"reshape: stage 0 has nothing left to train; {planned.reason}", True
    if len(planned.placement.stage_bounds) == len(current.stage_bounds) and planned.placement == current:
        return current, "no reshape: the same placement", False
    before = placement_cost(current, inputs)
    pays, reason = should_reshape(
        before,
        planned.cost,
        inputs.steps_left,
        inputs.measured_reshape_seconds,
        inputs.placement.hysteresis,
        inputs.placement.objective,
        len(current.workers),
        len(planned.placement.workers),
    )
    return (planned.placement, reason, True) if pays or inputs.placement.reshape_every_freeze else (current, reason, False)
