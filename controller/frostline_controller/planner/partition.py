"""Where to cut: contiguous stages that minimise the bottleneck t_max, by dynamic programming over the cut points.

The frozen prefix rides in stage 0 and every stage has at least one trainable unit, so cuts lie in (freeze_point, num_units).
What a stage adds to a step beyond the pipeline's fill is additive over its units (cost.py), so the least step time for a
number of stages is the fill plus the least bottleneck. One table serves every number of stages: row j holds, for each first
unit, the best bottleneck of j stages that end the model. It is exact: equal to trying all cuts, wherever all cuts carry the
same bytes (they do: residual streams).
"""

import numpy as np

from frostline_controller.planner.cost import CostModel, in_flight


class StageCosts:
    """Seconds and feasibility of every possible stage for one (micro-batches, dealing, schedule).

    weights[i, k]: seconds beyond the fill of the stage from cuts[i] up to cuts[k], infinite where it is empty. cuts: the
    possible first units (0 stands for the prefix and the first trainable unit), then num_units.
    """

    def __init__(
        self, model: CostModel, micro_batches: int, leaf_bounds: tuple[int, ...], schedule: str, virtual: int, speed: float = 1.0
    ):
        inputs = model.inputs
        self.model, self.schedule, self.virtual = model, schedule, virtual
        self.micro_batches = micro_batches
        self.dp_degree = len(leaf_bounds) - 1
        self.most_leaves = max(b - a for a, b in zip(leaf_bounds, leaf_bounds[1:], strict=False))
        self.cuts = np.array([0, *range(inputs.freeze_point + 1, inputs.num_units + 1)])
        low, high = np.meshgrid(self.cuts, self.cuts, indexing="ij")
        self.low, self.high, self.empty = low, high, low >= high
        compute = (model.compute[high] - model.compute[low]) / speed
        gradients = model.gradient_bytes[high] - model.gradient_bytes[low]
        seconds = (micro_batches - 1 / virtual) * (compute + model.sends(low, high))
        rest = model.exchange(gradients, leaf_bounds) + model.optimizer(gradients) / speed
        self.weights = np.where(self.empty, np.inf, seconds + rest)
        # A rank's memory is shared by its virtual stages; an equal share each never exceeds it.
        self.cap = (inputs.memory_cap - inputs.base_bytes) / virtual
        self._fixed_bytes = model.stage_bytes(low, high, 0, self.most_leaves, self.dp_degree)
        self._activations = model.activation_bytes[high] - model.activation_bytes[low]
        self._largest, self._largest_activation = float(self._fixed_bytes.max()), float(self._activations.max())
        self._capped: dict[int, np.ndarray] = {}

    def capped(self, held: int) -> np.ndarray:
        """Weights, infinite where a stage that holds `held` micro-batches' activations exceeds the memory cap."""
        if self.unlimited or self._largest + held * self._largest_activation <= self.cap:
            return self.weights
        if held not in self._capped:
            self._capped = {held: np.where(self.bytes_of(held) > self.cap, np.inf, self.weights)}  # rows ask in order: keep one
        return self._capped[held]

    @property
    def unlimited(self) -> bool:
        return bool(np.isinf(self.cap))

    def least_peak(self, stages: int, pp_degree: int) -> float:
        """Least possible bytes of the fullest worker with `stages` stages: the same table over bytes instead of seconds."""
        best = np.full(len(self.cuts), np.inf)
        best[-1] = 0.0
        for left in range(1, stages + 1):
            held = np.where(self.empty, np.inf, self.bytes_of(self.held_from_end(left, pp_degree)))
            best = np.maximum(held, best[None, :]).min(axis=1)
        return float(best[0]) * self.virtual

    def bytes_of(self, held: int) -> np.ndarray:
        return self._fixed_bytes + held * self._activations

    def held_from_end(self, stages_left: int, pp_degree: int) -> int:
        """Micro-batches in flight in the stage that has `stages_left` stages from itself to the end."""
        if self.schedule == "1f1b":  # pp_degree - pp_rank, whatever pp_degree is: so one table serves them all
            return min(self.micro_batches, stages_left)
        return int(in_flight(self.schedule, pp_degree, 0, self.micro_batches))


class PartitionTable:
    """The best bottleneck for 1 .. most_stages stages, and the cuts that reach it."""

    def __init__(self, costs: StageCosts, most_stages: int, pp_degree: int):
        self.costs = costs
        last = len(costs.cuts) - 1
        self._best = np.full(last + 1, np.inf)
        self._best[last] = 0.0
        self._next: list[np.ndarray] = []
        self.bottlenecks: list[float] = []
        for stages in range(1, min(most_stages, last) + 1):
            weights = costs.capped(costs.held_from_end(stages, pp_degree))
            through = np.maximum(weights, self._best[None, :])
            choice = through.argmin(axis=1)
            self._best = through[np.arange(last + 1), choice]
            self._next.append(choice)
            self.bottlenecks.append(float(self._best[0]))

    def bottleneck(self, stages: int) -> float:
        """Least possible bottleneck in seconds; infinite where `stages` do not fit."""
        return self.bottlenecks[stages - 1] if stages <= len(self.bottlenecks) else float("inf")

    def bounds(self, stages: int) -> tuple[int, ...]:
        """stages + 1 unit indices that reach the bottleneck."""
        assert np.isfinite(self.bottleneck(stages)), f"{stages} stages do not fit"
        place, bounds = 0, [0]
        for left in range(stages, 0, -1):
            place = int(self._next[left - 1][place])
            bounds.append(int(self.costs.cuts[place]))
        return tuple(bounds)


def refined_bounds(
    costs: StageCosts, stages: int, pp_degree: int, bottleneck: float, here: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Among all cuts that reach `bottleneck`, the one that moves the fewest bytes, then the most even one.

    here: the bounds in force, where they have as many stages; None: evenness alone (sum of squared stage weights).
    """
    last = len(costs.cuts) - 1
    scale = bottleneck if bottleneck > 0 else 1.0
    best = np.full(last + 1, np.inf)
    best[last] = 0.0
    choices: list[np.ndarray] = []
    for left in range(1, stages + 1):
        weights = costs.capped(costs.held_from_end(left, pp_degree))
        allowed = weights <= bottleneck * (1 + 1e-9) + 1e-15
        penalty = np.where(allowed, (np.where(allowed, weights, 0.0) / scale) ** 2, np.inf)
        if here is not None:
            penalty = penalty + _moved_share(costs, here[stages - left], here[stages - left + 1]) * 1e6
        through = penalty + best[None, :]
        choice = through.argmin(axis=1)
        best = through[np.arange(last + 1), choice]
        choices.append(choice)
    place, bounds = 0, [0]
    for left in range(stages, 0, -1):
        place = int(choices[left - 1][place])
        bounds.append(int(costs.cuts[place]))
    return tuple(bounds)


def _moved_share(costs: StageCosts, here_low: int, here_high: int) -> np.ndarray:
    """Share of the model's state that a stage [low, high) lacks where [here_low, here_high) lies already."""
    state = costs.model.state_bytes
    kept_low, kept_high = np.maximum(costs.low, here_low), np.minimum(costs.high, here_high)
    kept = np.where(kept_high > kept_low, state[kept_high] - state[np.minimum(kept_low, kept_high)], 0.0)
    return (state[costs.high] - state[costs.low] - kept) / max(state[-1], 1.0)
