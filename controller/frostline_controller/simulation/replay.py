"""The simulated replay of a run: at each freeze the production planner chooses, and its cost model prices each stretch of steps.

The controller's own functions decide: `choose_placement` with its verdict on whether a reshape pays, `cheapest_placement` for the
objective cost, `placement_cost` for the step that follows. This module only keeps the run's books: the steps that have passed,
the contents of the cache, the devices held, the time and the money.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from frostline_contract.job import Job
from frostline_contract.plan import Placement
from frostline_controller.decisions.initial import check_initial_units
from frostline_controller.planner.adapter import Choice, Situation, choose_placement, plan_inputs
from frostline_controller.planner.cheapest import cheapest_placement
from frostline_controller.planner.cost import StepCost
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.planner.verdict import differ
from frostline_controller.simulation.contents import CacheContents
from frostline_controller.simulation.history import Change, History
from frostline_controller.simulation.passes import samples_after, steps_to
from frostline_controller.simulation.world import World

SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Span:
    """Consecutive steps that are all alike.

    Attributes:
        first_step, steps: the first step, counted from 1, and the number of steps.
        samples: samples trained before the span.
        freeze_point, placement: in force.
        cost: of one of its steps.
        hit_fraction: share of the boundary activations that the cache holds; 0 without a cache.
        held: devices that the run holds, spare ones included.
        start_seconds: when its first step begins, from the run's start.
        reshape_seconds: time for which training stands still before that.
        price_per_hour: of the devices held.
        reason: of the placement; empty where only the cache's contents have changed.
    """

    first_step: int
    steps: int
    samples: int
    freeze_point: int
    placement: Placement
    cost: StepCost
    hit_fraction: float
    held: int
    start_seconds: float
    reshape_seconds: float
    price_per_hour: float
    reason: str

    @property
    def seconds(self) -> float:
        """Seconds of the span's steps, without the reshape before them."""
        return self.steps * self.cost.total_seconds

    @property
    def end_seconds(self) -> float:
        """When its last step ends, in seconds from the run's start."""
        return self.start_seconds + self.seconds

    @property
    def samples_per_second(self) -> float:
        """Training samples a second, by the cost of one step."""
        return self.cost.samples / self.cost.total_seconds

    @property
    def bubble_share(self) -> float:
        """The part of a step in which the critical pipeline rank waits for others."""
        return self.cost.parts["bubble"] / self.cost.total_seconds

    @property
    def device_hours(self) -> float:
        """Hours of all devices held, the reshape before the span included."""
        return self.held * (self.seconds + self.reshape_seconds) / SECONDS_AN_HOUR

    @property
    def money(self) -> float:
        """The cost of the devices held, for the span's steps and the reshape before them."""
        return self.price_per_hour * (self.seconds + self.reshape_seconds) / SECONDS_AN_HOUR


@dataclass(frozen=True)
class Replay:
    """A whole replayed run.

    Attributes:
        spans: in the order of time.
        history: the freeze history that was replayed.
        samples: number of samples trained; a sample counts in each pass.
    """

    spans: tuple[Span, ...]
    history: History
    samples: int

    @property
    def seconds(self) -> float:
        """Seconds of all steps and reshapes; evaluation, checkpoints and the start are not included."""
        return self.spans[-1].end_seconds

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        return sum(span.steps for span in self.spans)

    @cached_property
    def device_hours(self) -> float:
        """Hours of all devices that the run holds, spare ones included."""
        return sum(span.device_hours for span in self.spans)

    @cached_property
    def money(self) -> float:
        """The cost of all held devices, in the cluster file's currency."""
        return sum(span.money for span in self.spans)

    @property
    def reshapes(self) -> int:
        """Number of changes of the placement."""
        return sum(
            1 for before, after in zip(self.spans, self.spans[1:], strict=False) if before.placement is not after.placement
        )


@dataclass(frozen=True)
class Length:
    """The length of a run: its steps, or (where the batch grows with the replicas) its samples, whichever end comes first."""

    steps: int
    samples: int | None

    def left(self, step: int, samples: int, samples_of_step: int, train_samples: int) -> int:
        """Return the number of steps left after `step`. Arguments as in `passes.steps_to`."""
        left = self.steps - step
        return left if self.samples is None else min(left, steps_to(self.samples, samples, samples_of_step, train_samples))


class _Books:
    """The state of a replay."""

    def __init__(self, job: Job, world: World, length: Length) -> None:
        self.job, self.world, self.length = job, world, length
        self.step, self.samples, self.clock = 0, 0, 0.0
        self.freeze_point = self.never_learnt = job.initial_freeze_point(world.num_units)
        self.placement: Placement | None = None
        self.start: dict[str, int] = {}
        self.held = len(world.workers)
        self.contents = CacheContents.of(job, world)
        self.spans: list[Span] = []

    # ---- deciding, by production's functions

    def choose(self, freeze_point: int) -> tuple[str, float]:
        """Set the freeze point and, where it pays, another placement. Returns (why, seconds that the switch stops training)."""
        before, changed = self.placement, freeze_point != self.freeze_point
        self.freeze_point, self.never_learnt = freeze_point, min(self.never_learnt, freeze_point)
        choice = self._asked()
        due = self.job.placement.reshape_every_freeze and changed
        reason = f"{choice.verdict}; {choice.reason}" if choice.verdict and not due else choice.reason
        if before is None:
            self.placement, self.start = choice.placement, dict(choice.placement.degrees)
            return reason, 0.0
        if not due and not (choice.pays and differ(choice.placement, before)):
            return reason, 0.0
        self.placement = choice.placement
        if self.job.placement.objective == "cost":
            per_pod, spare = self.job.placement.workers_per_pod, self.job.placement.spare_workers
            pods = ceil((len(choice.placement.workers) + spare) / per_pod)
            self.held = min(len(self.world.workers), pods * per_pod - spare)
        return reason, self.world.cluster.reshape_seconds

    def _asked(self) -> Choice:
        if self.job.placement.objective != "cost":
            return choose_placement(self.job, self._situation())
        choice, wanted = cheapest_placement(self.job, self._situation(), len(self.world.workers))
        if wanted:  # pods come back before the next plan
            self.held = wanted
            choice, _ = cheapest_placement(self.job, self._situation(), len(self.world.workers))
        return choice

    def _situation(self) -> Situation:
        left = max(0, self.length.steps - self.step)
        now = self.world.situation(self.job, self.freeze_point, self.placement, self.start, left, self.held)
        return replace(now, never_learnt=self.never_learnt, cached_point=self.contents.boundary)

    # ---- passing time

    def cost(self) -> StepCost:
        """Return the cost of a step of the placement in force, with the cache's present contents."""
        assert self.placement is not None
        inputs = plan_inputs(self.job, self._situation())
        if self.placement.use_cache:
            inputs = self.contents.priced(inputs)
        return placement_cost(self.placement, inputs)

    def pass_steps(self, most: int, reason: str, reshape_seconds: float) -> None:
        """Pass `most` steps, in one span for each state of the cache."""
        placement = self.placement
        assert placement is not None
        self.contents.at(self.freeze_point if placement.use_cache else 0)
        self.clock += reshape_seconds
        while most > 0:
            cost = self.cost()
            steps = min(most, self.contents.steps_alike(cost.samples))
            prices = self.world.prices[: self.held + self.job.placement.spare_workers]
            hit = self.contents.hit_fraction if placement.use_cache else 0.0
            self.spans.append(
                Span(
                    self.step + 1,
                    steps,
                    self.samples,
                    self.freeze_point,
                    placement,
                    cost,
                    hit,
                    len(prices),
                    self.clock,
                    reshape_seconds,
                    sum(prices),
                    reason,
                )
            )
            self.step += steps
            trained = samples_after(self.samples, steps, cost.samples, self.world.train_samples)
            self.clock += steps * cost.total_seconds
            self.contents.pass_samples(trained - self.samples)
            self.samples = trained
            most, reason, reshape_seconds = most - steps, "", 0.0


def replay(job: Job, world: World, history: History, length: Length) -> Replay:
    """Return the replay of a run.

    Args:
        job: the job that is simulated.
        world: the described cluster, with the costs of the model's units on it.
        history: the freeze history.
        length: when the run ends.

    Raises:
        ValueError: no placement fits, or the history goes deeper than the model.
    """
    if history.deepest() >= world.num_units:
        raise ValueError(
            f"freeze point {history.deepest()} ({history.source}) is beyond the model's {world.num_units} units; at most "
            f"{world.num_units - 1}, since the head always learns"
        )
    check_initial_units(job.initial_units, world.num_units)
    books = _Books(job, world, length)
    changes = list(history.changes)
    first = _take_due(changes, books.step, books.samples, world.train_samples, books.freeze_point)
    reason, reshape_seconds = books.choose(first)
    while True:
        samples_of_step = books.cost().samples
        left = length.left(books.step, books.samples, samples_of_step, world.train_samples)
        if left <= 0:
            return Replay(tuple(books.spans), history, books.samples)
        until = _steps_until(changes[0], books.step, books.samples, world.train_samples, samples_of_step) if changes else left
        books.pass_steps(min(left, until), reason, reshape_seconds)
        if until >= left:
            return Replay(tuple(books.spans), history, books.samples)
        point = _take_due(changes, books.step, books.samples, world.train_samples, books.freeze_point)
        reason, reshape_seconds = books.choose(point)


def _take_due(changes: list[Change], step: int, samples: int, train_samples: int, now: int) -> int:
    """Return the freeze point of the next step, and remove the due changes from the list.

    Args:
        changes: the changes to come, in the order of time.
        step: steps so far.
        samples: samples so far.
        train_samples: of the training split; 0: unknown.
        now: the freeze point in force.
    """
    while changes and _steps_until(changes[0], step, samples, train_samples, 1) <= 0:
        now = changes.pop(0).freeze_point
    return now


def _steps_until(change: Change, step: int, samples: int, train_samples: int, samples_of_step: int) -> int:
    """Return the number of steps before the change is in force; 0 or less where it is in force.

    Args:
        change: by its step or by its epoch.
        step: steps so far.
        samples: samples so far.
        train_samples: of the training split; 0: unknown.
        samples_of_step: samples of each further step.

    Raises:
        ValueError: the change is by epoch, and the number of training samples is unknown.
    """
    if change.step is not None:
        return change.step - 1 - step
    assert change.epoch is not None
    if not train_samples:
        raise ValueError("a freeze history by epoch needs the number of training samples; give --train-samples N")
    return steps_to(change.epoch * train_samples, samples, samples_of_step, train_samples)
