"""The cost of a step: seconds by part, and bytes by worker, for a given cut, dealing and schedule.

Stage i spends x_i seconds on a micro-batch: forward and backward of its trainable units, forward (or fetch) of its frozen
ones, and its sends. A replica of m micro-batches fills and drains the pipeline once and is paced by its slowest stage:

    step = sum_i x_i / v + max_i [ (m - 1/v) * x_i + exchange_i + optimizer_i ] + vote        (1F1B; v virtual stages a rank)

with v = 1 and one replica the usual sum + (m - 1) * max; with v > 1 the bubble shrinks by v (arXiv 2104.04473, section 2.2).
The bubble and the micro-batches in flight are the schedule's own figures (`frostline_contract.schedules`). Where
micro-batches pass in slices of token cells, a stage fills the pipeline with its longest slice y_i in place of x_i:

    step = sum_i y_i / v + max_i [ m * x_i - y_i / v + exchange_i + optimizer_i ] + vote

Where workers have a share of a processor, each computation of the other ranks for which the slowest rank waits begins after a
wait of their own, and its seconds are those after a wait (`planner.quota`).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from frostline_contract.schedules import schedule_named
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.cache_costs import cache_seconds
from frostline_controller.planner.cell_costs import CellCosts, beside_cells
from frostline_controller.planner.gathers import with_gathers
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.leaves import (
    exchange_bytes_factor,
    gradient_buffers,
    micro_batch_counts,
    slowest_replica,
    tree_pieces,
)
from frostline_controller.planner.split_costs import split_price

PARTS = ("forward", "backward", "prefix_recompute", "cache_fetch", "p2p", "bubble", "exchange", "optimizer", "vote", "contention")


@dataclass(frozen=True)
class StepCost:
    """A predicted step.

    total_seconds: the sum of `parts` (PARTS, in seconds on the critical path; bubble: waits of the critical stage; contention:
    time added by fewer cores than workers). samples: trained by the step. stage_seconds: x_i of the slowest replica.
    peak_bytes: memory of the fullest worker.
    """

    total_seconds: float
    parts: dict[str, float]
    samples: int
    stage_seconds: tuple[float, ...] = ()
    peak_bytes: float = 0.0

    @property
    def seconds_per_sample(self) -> float:
        """Seconds a sample, by which shapes are compared: in the order of total_seconds unless the batch grows with replicas."""
        return self.total_seconds / self.samples


class CostModel:
    """The prefix sums of one profile, freeze point and cache verdict; every array has num_units + 1 entries.

    pipeline_link: the link of messages along the pipeline; it depends on the shape (`of_shape`). None: over PlanInputs' `link`.
    """

    def __init__(self, inputs: PlanInputs, use_cache: bool = False, pipeline_link: LinkProfile | None = None):
        self.inputs = inputs
        self.use_cache = use_cache
        self.pipeline_link = pipeline_link or inputs.for_messages(inputs.link)
        self._by_shape: dict[tuple[LinkProfile, int], CostModel] = {(self.pipeline_link, 1): self}
        frozen = np.arange(inputs.num_units) < inputs.freeze_point
        column = {
            name: np.array([getattr(unit, name) for unit in inputs.units], dtype=float)
            for name, field in type(inputs.units[0]).model_fields.items()
            if field.annotation in (int, float)
        }
        fetch, recompute = self._prefix_seconds(column["forward_seconds"], frozen)
        self.forward = _sums(np.where(frozen, 0.0, column["forward_seconds"]))
        self.backward = _sums(np.where(frozen, 0.0, column["backward_seconds"]))
        self.recompute, self.fetch = _sums(recompute), _sums(fetch)
        self.compute = self.forward + self.backward + self.recompute + self.fetch
        self.gradient_bytes = _sums(np.where(frozen, 0.0, column["parameter_bytes"] - column["still_bytes"]))
        self.state_bytes = _sums(np.array(inputs.unit_state_bytes, dtype=float))
        not_shared = column["parameter_bytes"]
        if inputs.gathers_at_use:
            not_shared = np.where(frozen, not_shared, column["still_bytes"])
        self.shared_bytes = _sums(np.array(inputs.unit_state_bytes, dtype=float) - not_shared)
        self.activation_bytes = _sums(np.where(frozen, 0.0, column["activation_bytes"]))
        self.entry_bytes = _entries(column["output_bytes"], inputs.freeze_point)
        links = [self.pipeline_link, *([inputs.for_messages(inputs.near_link)] if inputs.near_link is not None else [])]
        sends = [_sends_over(link, column["output_bytes"]) for link in links]
        self.send_seconds = sends[0]
        self.least_send_seconds = float(np.min([one[inputs.freeze_point + 1 : -1] for one in sends], initial=np.inf))
        if not np.isfinite(self.least_send_seconds):
            self.least_send_seconds = 0.0
        self.longest_stages: dict[float, int] = {}  # by memory cap; filled by partition.longest_stage
        self.cells = CellCosts(inputs)
        self.beside_bytes = _sums(beside_cells(inputs))
        self.working_bytes = _greatest(np.where(frozen, 0.0, column["working_bytes"]))
        self.transient_bytes = 2 * float(max(column["output_bytes"][frozen], default=0.0))

    def of_shape(self, pp_degree: int, dp_degree: int) -> "CostModel":
        """Return the model for a shape: with the link of pipelines of this depth, and with gathers of shared-out weights."""
        link, replicas = self.inputs.pipeline_link(pp_degree), dp_degree if self.inputs.gathers_at_use else 1
        if (link, replicas) not in self._by_shape:
            self._by_shape[link, replicas] = CostModel(with_gathers(self.inputs, replicas), self.use_cache, link)
        return self._by_shape[link, replicas]

    def _prefix_seconds(self, forward: np.ndarray, frozen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds a micro-batch of (fetch, recompute) by unit; fetches count for unit 0; misses are filled."""
        fetch, recompute = np.zeros_like(forward), np.where(frozen, forward, 0.0)
        if self.use_cache and frozen.any():
            seconds, fill, hit = cache_seconds(self.inputs)
            fetch[0] = self.inputs.micro_batch_size * (hit * seconds + (1 - hit) * fill)
            recompute = recompute * (1 - hit)
        return fetch, recompute

    def sends(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the seconds a micro-batch of the sends of stages [low, high): activations on, and gradients back if needed."""
        return self.send_seconds[high] + np.where(low > self.inputs.freeze_point, self.send_seconds[low], 0.0)

    def exchange(self, gradient_bytes: np.ndarray, leaf_bounds: tuple[int, ...]) -> np.ndarray:
        """Return the seconds to sum flat gradients of that many bytes over the replicas, in the tree's order.

        reduce_bandwidth is that of a two-member all-reduce, whose members send the buffer once. Where state is shared out, a
        gather of weights takes the place of the gather of sums, with as many bytes; at each use of a unit it is counted there.
        """
        link, dp_degree = self.inputs.link, len(leaf_bounds) - 1
        if dp_degree == 1:
            return np.zeros_like(gradient_bytes)
        aligned_pair = dp_degree == 2 and all(tree_pieces(*pair) == 1 for pair in pairwise(leaf_bounds))
        if (aligned_pair and not self.inputs.is_sharded) or not self.inputs.exact_numerics:
            calls, factor = 1, 2 * (dp_degree - 1) / dp_degree
        else:
            calls, factor = 2, exchange_bytes_factor(leaf_bounds)
        if self.inputs.gathers_at_use:
            calls, factor = calls - 1, factor - (dp_degree - 1) / dp_degree
        return calls * link.reduce_latency_seconds + factor * gradient_bytes / link.reduce_bandwidth_bytes_per_second

    def optimizer(self, gradient_bytes: np.ndarray) -> np.ndarray:
        """Return the seconds of the optimizer's update of weights with these bytes of gradients, element by element."""
        return gradient_bytes * self.inputs.optimizer_seconds_per_byte

    def tie_seconds(self, pp_degree: int) -> float:
        """Return the seconds to sum the tied matrix's two gradients between first and last stage."""
        if not self.inputs.tied or pp_degree == 1 or self.inputs.freeze_point > 0:
            return 0.0
        link = self.pipeline_link
        return link.latency_seconds + self.inputs.units[0].parameter_bytes / link.bandwidth_bytes_per_second

    def vote_seconds(self, world_size: int) -> float:
        """Return the vote's seconds: an all-reduce, a slot a unit and two a micro-batch, 8 bytes each, log2(world) rounds."""
        if world_size == 1:
            return 0.0
        link, slots = self.inputs.link, self.inputs.num_units + 2 * self.inputs.num_microbatches
        return link.reduce_latency_seconds * (world_size - 1).bit_length() + 8 * slots / link.reduce_bandwidth_bytes_per_second

    def owned_share(self, dp_degree: int) -> float:
        """Return the share of a stage's shared-out state that the replica with the most ranges holds; 1 without sharing."""
        ranges = self.inputs.state_ranges
        return -(-ranges // dp_degree) / ranges if self.inputs.is_sharded and dp_degree <= ranges else 1.0

    def kept_bytes(self, low, high):
        """Return the bytes that a micro-batch keeps in the stages [low, high) until its backward, entry included."""
        return self.activation_bytes[high] - self.activation_bytes[low] + self.entry_bytes[low]

    def stage_bytes(self, low, high, in_flight, leaf_bounds: tuple[int, ...], slices: int = 1):
        """Return the memory of the stages [low, high): weights and moments (frozen ones too; of shared state a member's share),
        gradient buffers, activations in flight, and the most working bytes of any unit.

        Args:
            low, high: first unit of each stage, and the first one after it; numbers or arrays.
            in_flight: micro-batches whose activations a stage holds at once; a fraction where they pass in `slices`.
            leaf_bounds: dp_degree + 1 leaf indices.
            slices: of each micro-batch.
        """
        buffers, dp_degree = gradient_buffers(self.inputs, leaf_bounds), len(leaf_bounds) - 1
        total = self.state_bytes[high] - self.state_bytes[low]
        total = total - (1 - self.owned_share(dp_degree)) * (self.shared_bytes[high] - self.shared_bytes[low])
        total = total + buffers * (self.gradient_bytes[high] - self.gradient_bytes[low])
        total = total + in_flight * self.kept_bytes(low, high)
        total = total + self.working_bytes[low, high]
        if slices > 1:  # some buffers of a micro-batch are held whole although its slices arrive one by one: two sets at a time
            total = total + 2 * (self.beside_bytes[high] - self.beside_bytes[low])
        total = total + np.where(low < self.inputs.freeze_point, self.transient_bytes, 0.0)
        if self.inputs.tied:  # the last stage holds a copy of unit 0's matrix, and its gradient while it learns
            copy = self.inputs.units[0].parameter_bytes * (1 if self.inputs.freeze_point else 1 + buffers)
            total = total + np.where((high == self.inputs.num_units) & (low > 0), copy, 0.0)
        return total


def _entries(output_bytes: np.ndarray, freeze_point: int) -> np.ndarray:
    """Return the bytes that a micro-batch brings to the learning units of a stage, by the stage's first unit.

    It is the output of the unit before them, which stays until their backward; none for the model's first unit.
    """
    entries = np.zeros(len(output_bytes) + 1)
    first = np.maximum(np.arange(len(output_bytes)), freeze_point)
    entries[:-1] = np.where(first > 0, output_bytes[first - 1], 0.0)
    return entries


def _sends_over(link: LinkProfile, output_bytes: np.ndarray) -> np.ndarray:
    """Return the seconds to send a micro-batch's activations over the cut before each unit; 0 at both ends of the model."""
    seconds = np.zeros(len(output_bytes) + 1)
    seconds[1:-1] = link.latency_seconds + output_bytes[:-1] / link.bandwidth_bytes_per_second
    return seconds


def _greatest(values: np.ndarray) -> np.ndarray:
    """Return a table: [low, high] is the greatest of values[low:high], 0 for an empty range."""
    table = np.zeros((len(values) + 1, len(values) + 1))
    for low in range(len(values)):
        table[low, low + 1 :] = np.maximum.accumulate(values[low:])
    return table


def _sums(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def even_slices(inputs: PlanInputs, pp_degree: int, schedule: str, count: int = 0) -> tuple[int, ...]:
    """Return the cells of each slice, as even as possible, in `count` slices (0: as many as allowed); () for a single slice."""
    count = count or inputs.num_slices(pp_degree, schedule)
    bounds = [number * inputs.token_cells // count for number in range(count + 1)]
    return tuple(high - low for low, high in pairwise(bounds)) if count > 1 else ()


def replica_micro_batches(inputs: PlanInputs, leaf_bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of micro-batches of each replica; with batch "per_replica", as in the paper, each runs all M."""
    if inputs.batch == "per_replica":
        return (inputs.num_microbatches,) * (len(leaf_bounds) - 1)
    return micro_batch_counts(leaf_bounds, inputs.num_microbatches, inputs.reduction_leaves)


def step_cost(
    model: CostModel,
    stage_bounds: tuple[int, ...],
    leaf_bounds: tuple[int, ...],
    shape: ParallelShape,
    schedule: str,
    speeds: list[float],
    slices: tuple[int, ...] | None = None,
) -> StepCost:
    """Return the cost of a step of any cut, transit shapes (frozen units outside stage 0) included.

    stage_bounds: shape.num_stages + 1 unit indices. speeds: one a replica, that of its slowest member. slices: cells of each
    slice; () for a single slice, None for as many slices as allowed.
    """
    inputs = model.inputs
    bounds = np.asarray(stage_bounds)
    low, high = bounds[:-1], bounds[1:]
    pp_degree, dp_degree, virtual = shape.pp_degree, shape.dp_degree, shape.virtual_stages
    counts = replica_micro_batches(inputs, leaf_bounds)
    slowest = slowest_replica(counts, speeds)
    m, speed = counts[slowest], speeds[slowest]

    owners = shape.pp_rank_of_stage(np.arange(shape.num_stages))

    def by_rank(sums: np.ndarray) -> np.ndarray:
        """Return each pipeline rank's sum over its virtual stages."""
        return np.bincount(owners, sums[high] - sums[low])

    sends = np.bincount(owners, model.sends(low, high)) if pp_degree > 1 else np.zeros(1)
    split = np.bincount(owners, split_price(model, bounds, schedule))
    compute = (by_rank(model.compute) + split) / speed
    slices = even_slices(inputs, pp_degree, schedule) if slices is None else slices
    count, longest = max(1, len(slices)), compute + sends
    if count > 1:
        by_slice = sum(model.cells.of_stages(model, low, high, slices, speed))
        longest = np.bincount(owners, by_slice.max(axis=1))
        sends = np.bincount(owners, by_slice.sum(axis=1)) - by_rank(model.compute) / speed
    seconds = compute + sends
    gradients = by_rank(model.gradient_bytes)
    exchange, optimizer = model.exchange(gradients, leaf_bounds), model.optimizer(gradients) / speed
    critical = int(np.argmax(m * seconds - longest / virtual + exchange + optimizer))
    parts = {name: m * float(by_rank(getattr(model, name))[critical]) / speed for name in ("forward", "backward")}
    parts["backward"] += m * float(split[critical]) / speed
    parts["prefix_recompute"] = m * float(by_rank(model.recompute)[critical]) / speed
    parts["cache_fetch"] = m * float(by_rank(model.fetch)[critical]) / speed
    parts["p2p"] = m * float(sends[critical])
    program = schedule_named(schedule)
    forward = by_rank(model.compute - model.backward) / speed + sends / 2
    backward = (by_rank(model.backward) + split) / speed + sends / 2
    even = [_beside(inputs, whole, critical, virtual * count) / count for whole in (forward, backward)]
    parts["bubble"] = program.known_figures.bubble(critical, *(side.tolist() for side in even), virtual, m * count)
    if count > 1:  # the figures assume slices of equal length; the longest fill the pipeline
        beyond = inputs.quickest * (longest - seconds / count)
        parts["bubble"] += float(beyond.sum() - beyond[critical]) / virtual
    parts["exchange"] = float(exchange[critical]) + model.tie_seconds(pp_degree)
    parts["optimizer"] = float(optimizer[critical])
    parts["vote"] = model.vote_seconds(shape.world_size)
    busy = m * float(seconds[critical]) + parts["bubble"] + parts["optimizer"]
    parts["contention"] = contention_seconds(model, sum(counts), dp_degree, shape.world_size, busy)
    in_flight = np.array([program.in_flight(pp_rank, pp_degree, virtual, max(counts), count) for pp_rank in range(pp_degree)])
    held = model.stage_bytes(low, high, in_flight[owners], leaf_bounds, count)
    peak = float(np.bincount(owners, held).max()) + inputs.base_bytes
    ordered = {name: parts[name] for name in PARTS}
    return StepCost(sum(ordered.values()), ordered, inputs.samples_of_step(dp_degree), tuple(seconds.tolist()), peak)


def _beside(inputs: PlanInputs, seconds: np.ndarray, critical: int, parts: int) -> np.ndarray:
    """Return the seconds of a micro-batch by pipeline rank; ranks other than the critical one wait before each of its parts."""
    if inputs.quota is None:
        return seconds
    waited = parts * inputs.quota.after_a_wait(seconds / parts)
    waited[critical] = seconds[critical]
    return waited


def contention_seconds(model: CostModel, micro_batches: int, dp_degree: int, workers: int, busy_seconds: float) -> float:
    """Return the seconds by which all workers' computing, on fewer cores than workers, exceeds the pipeline's own time."""
    slots = model.inputs.parallel_slots
    if slots is None or slots >= workers:
        return 0.0
    work = micro_batches * model.compute[-1] + dp_degree * model.optimizer(model.gradient_bytes[-1])
    return max(0.0, float(work) / slots - busy_seconds)
