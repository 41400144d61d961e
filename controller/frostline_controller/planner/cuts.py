"""The cut into contiguous stages with the least bottleneck t_max, by dynamic programming over the cut points.

Stage 0 holds the frozen prefix and every stage has at least one trainable unit, so cuts lie in (freeze_point, num_units); or the
frozen units may be divided over stages, and cuts lie anywhere (`PlanInputs.first_cut`). The time that a stage adds to a step
beyond the pipeline's fill is additive over its units (cost.py), so the least step time for a number of stages is the fill plus
the least bottleneck. One table serves every number of stages: row j holds, for each first unit, the best bottleneck of j stages
that end the model. The result is exact, as if all cuts were tried, wherever all cuts send the same bytes (they do: residual
streams). For GPipe, paced by two maxima, and for interleaved stages, where a rank has the sum of its stages' times, the cut is
near the best but not always the best (at worst 4 % slower in 300 random small cases); their predicted costs are exact. The same
holds for workers with a share of a processor, where the fill depends on the cut.
"""

import numpy as np

from frostline_contract.schedules import is_folded, schedule_named
from frostline_contract.shape import pp_rank_of_stage
from frostline_controller.planner.cost import CostModel


class StageCosts:
    """Seconds and bytes of every possible stage for one (micro-batches, dealing, schedule).

    Arrays have a row for each first cut i and a column for each length k: the stage from cuts[i] up to cuts[i + 1 + k]; columns
    end at the longest stage that fits the memory under any schedule.

    Args:
        model: the cost model.
        micro_batches: of the replica with the most.
        leaf_bounds: dp_degree + 1 leaf indices.
        schedule: name of the schedule.
        virtual: stages of each pipeline rank.
        speed: of the worker that computes a stage: seconds of computing are divided by it.
        capped: whether stages beyond the memory limit of a worker count as impossible.
        slices: token slices of each micro-batch.

    Attributes:
        cuts: the possible first units (0 stands for the prefix and the first trainable unit), then num_units.
        weights: seconds beyond the fill, infinite past the model's end.
    """

    def __init__(
        self,
        model: CostModel,
        micro_batches: int,
        leaf_bounds: tuple[int, ...],
        schedule: str,
        virtual: int,
        speed: float = 1.0,
        capped: bool = True,
        slices: int = 1,
    ):
        inputs = model.inputs
        self.model, self.schedule, self.virtual = model, schedule, virtual
        self.program, self.slices = schedule_named(schedule), slices
        self.figures = self.program.known_figures
        self.micro_batches, self.dp_degree = micro_batches, len(leaf_bounds) - 1
        self.cuts = np.array([0, *range(inputs.first_cut, inputs.num_units + 1)])
        last = len(self.cuts) - 1
        # A rank's virtual stages share its memory; with an equal share for each their sum cannot exceed it.
        self.cap = (inputs.memory_cap - inputs.base_bytes) / virtual if capped else float("inf")
        width = last if self.unlimited else min(last, longest_stage(model, self.cap))
        ends = np.arange(last + 1)[:, None] + 1 + np.arange(width)
        self.outside = ends > last
        self.high = self.cuts[np.minimum(ends, last)]
        self.low = np.broadcast_to(self.cuts[:, None], self.high.shape)
        compute = (model.compute[self.high] - model.compute[self.low]) / speed
        gradients = model.gradient_bytes[self.high] - model.gradient_bytes[self.low]
        seconds = (micro_batches - 1 / (virtual * slices)) * (compute + model.sends(self.low, self.high))
        rest = model.exchange(gradients, leaf_bounds) + model.optimizer(gradients) / speed
        self._padded = np.full(last + width, np.inf)
        self._window = np.lib.stride_tricks.sliding_window_view(self._padded, width)
        self._capped: tuple[float, np.ndarray] | None = None
        self.weights = np.where(self.outside, np.inf, seconds + rest)
        self._fixed_bytes = model.stage_bytes(self.low, self.high, 0, leaf_bounds, slices)
        self._activations = model.kept_bytes(self.low, self.high)
        if not self.unlimited:  # micro-batches in flight whose activations fit into the rest of each stage's memory
            room = self.cap - self._fixed_bytes
            held = np.divide(room, self._activations, out=np.full_like(room, np.inf), where=self._activations > 0)
            self._most_held = np.where(room < 0, -1.0, held)

    @property
    def unlimited(self) -> bool:
        """Whether no memory limit forbids any stage."""
        return bool(np.isinf(self.cap))

    def capped_weights(self, held: float) -> np.ndarray:
        """Return the weights, infinite where a stage that holds `held` micro-batches' activations exceeds the memory cap."""
        if self.unlimited:
            return self.weights
        if self._capped is None or self._capped[0] != held:  # for most schedules successive calls have the same count
            self._capped = held, np.where(self._most_held < held, np.inf, self.weights)
        return self._capped[1]

    def held_from_end(self, stages_left: int, pp_degree: int) -> float:
        """Return the micro-batches in flight in the stage that has `stages_left` stages from itself to the end."""
        pp_rank = pp_rank_of_stage(pp_degree * self.virtual - stages_left, pp_degree, is_folded(self.schedule))
        return self.program.in_flight(pp_rank, pp_degree, self.virtual, self.micro_batches, self.slices)

    def after(self, best: np.ndarray) -> np.ndarray:
        """Return best[end] for each stage's end, as a sliding-window view that is valid until the next call."""
        self._padded[: len(best) - 1] = best[1:]
        return self._window

    def follow(self, choices: list[np.ndarray], stages: int) -> tuple[int, ...]:
        """Return the bounds that follow from `choices` (a column for each row, by stages left)."""
        place, bounds = 0, [0]
        for left in range(stages, 0, -1):
            place += 1 + int(choices[left - 1][place])
            bounds.append(int(self.cuts[place]))
        return tuple(bounds)

    def heaviest(self, bounds: tuple[int, ...]) -> float:
        """Return the bottleneck of given bounds, in seconds."""
        index = {int(cut): place for place, cut in enumerate(self.cuts)}
        pairs = zip(bounds, bounds[1:], strict=False)
        return max(float(self.weights[index[low], index[high] - index[low] - 1]) for low, high in pairs)

    def least_peak(self, stages: int, pp_degree: int) -> float:
        """Return the least possible bytes of the fullest worker with `stages` stages, by the same recursion over bytes."""
        best = self.past_end()
        for left in range(1, stages + 1):
            held = self._fixed_bytes + self.held_from_end(left, pp_degree) * self._activations
            best = np.maximum(np.where(self.outside, np.inf, held), self.after(best)).min(axis=1)
        return float(best[0]) * self.virtual

    def past_end(self) -> np.ndarray:
        """Return the recursion's start: 0 for no stages at the model's end, infinite elsewhere."""
        best = np.full(len(self.cuts), np.inf)
        best[-1] = 0.0
        return best


def longest_stage(model: CostModel, cap: float) -> int:
    """Return the most cut steps that a stage can span within `cap` bytes, with least activations and leaves; at least 1."""
    if cap in model.longest_stages:
        return model.longest_stages[cap]
    cuts = np.array([0, *range(model.inputs.first_cut, model.inputs.num_units + 1)])
    shared = (1 - model.owned_share(model.inputs.most_replicas)) * model.shared_bytes  # most bytes that other replicas may own
    spans, first = 1, 0
    for end in range(1, len(cuts)):  # two pointers: bytes grow with the stage
        while first < end - 1:
            low, high = cuts[first], cuts[end]
            if model.stage_bytes(low, high, 1, (0, 1)) - model.entry_bytes[low] - (shared[high] - shared[low]) <= cap:
                break
            first += 1
        spans = max(spans, end - first)
    model.longest_stages[cap] = spans
    return spans


class PartitionTable:
    """The least bottleneck for each of 1 .. most_stages stages, and the cuts that have it."""

    def __init__(self, costs: StageCosts, most_stages: int, pp_degree: int):
        self.costs = costs
        best = costs.past_end()
        rows = np.arange(len(best))
        self._choices: list[np.ndarray] = []
        self.bottlenecks: list[float] = []
        for stages in range(1, min(most_stages, len(best) - 1) + 1):
            through = np.maximum(costs.capped_weights(costs.held_from_end(stages, pp_degree)), costs.after(best))
            choice = through.argmin(axis=1)
            best = through[rows, choice]
            self._choices.append(choice)
            self.bottlenecks.append(float(best[0]))

    def bottleneck(self, stages: int) -> float:
        """Return the least possible bottleneck in seconds; infinite where `stages` do not fit."""
        return self.bottlenecks[stages - 1] if stages <= len(self.bottlenecks) else float("inf")

    def bounds(self, stages: int) -> tuple[int, ...]:
        """Return the stages + 1 unit indices of the cut with the least bottleneck."""
        assert np.isfinite(self.bottleneck(stages)), f"{stages} stages do not fit"
        return self.costs.follow(self._choices, stages)


def refined_bounds(
    costs: StageCosts, stages: int, pp_degree: int, bottleneck: float, here: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return, among all cuts within `bottleneck` seconds, the one that moves the fewest bytes, then the most even one.

    Args:
        costs: of the possible stages.
        stages: number of stages.
        pp_degree: the pipeline's depth.
        bottleneck: most seconds of a stage beyond the fill.
        here: the bounds in force, where they have as many stages; None: evenness alone decides (sum of squared stage weights).
    """
    scale = bottleneck if bottleneck > 0 else 1.0
    best = costs.past_end()
    rows = np.arange(len(best))
    choices: list[np.ndarray] = []
    for left in range(1, stages + 1):
        weights = costs.capped_weights(costs.held_from_end(left, pp_degree))
        allowed = weights <= bottleneck * (1 + 1e-9) + 1e-15
        penalty = np.where(allowed, (np.where(allowed, weights, 0.0) / scale) ** 2, np.inf)
        if here is not None:
            penalty = penalty + _moved_share(costs, here[stages - left], here[stages - left + 1]) * 1e6
        through = penalty + costs.after(best)
        choice = through.argmin(axis=1)
        best = through[rows, choice]
        choices.append(choice)
    return costs.follow(choices, stages)


def _moved_share(costs: StageCosts, here_low: int, here_high: int) -> np.ndarray:
    """Return for each stage [low, high) the share of the model's state that it lacks where [here_low, here_high) is held."""
    state = costs.model.state_bytes
    kept_low, kept_high = np.maximum(costs.low, here_low), np.minimum(costs.high, here_high)
    kept = np.where(kept_high > kept_low, state[kept_high] - state[np.minimum(kept_low, kept_high)], 0.0)
    return (state[costs.high] - state[costs.low] - kept) / max(state[-1], 1.0)
