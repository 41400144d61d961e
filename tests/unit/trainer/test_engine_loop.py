"""The loop inside a generation: decisions, refusals, switches, drains and ends follow votes and nothing else."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision, GenerationId, Plan, SeenVote
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.step.committing import close_interval
from frostline_trainer.step.due import CheckpointDue, Due, Ended, FreezeDue, IntervalDue, LoopEnd, RollbackDue, VotePassed
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.loop import BETWEEN_STEPS, TrainingLoop
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState
from tests.exact_cases import NUM_UNITS, Case, build_case
from tests.hand_made_plans import Layout

CALENDAR = DecisionCalendar(interval_steps=4, lag_steps=3, total_steps=9)
"""Intervals end with steps 4 and 8; decision 1 is in force from step 7 on."""
CASE = Case("vit", freezing=(), steps=9)
SMALL = {"batch_size": 8, "micro_batch_size": 4, "reduction_leaves": 2}


@dataclass
class Bench:
    """A lone worker's loop, the acts that it reported as due, and as many acts as the loop depends on."""

    case: Case = CASE
    wait_seconds: float = 0.0
    refused_steps_max: int = 10
    every_steps: int = 0
    asked: list[str] = field(default_factory=list)
    box: Mailbox = field(default_factory=lambda: Mailbox("w0"))
    state: RunState = field(default_factory=RunState)
    after_vote: Callable[[], None] = lambda: None
    seen: deque[SeenVote] = field(default_factory=lambda: deque(maxlen=2))

    def __post_init__(self) -> None:
        context = build_case(self.case)
        job = context.job
        changes = {
            "decisions": job.decisions.model_copy(update={"wait_seconds": self.wait_seconds}),
            "training": job.training.model_copy(update=SMALL | {"refused_steps_max": self.refused_steps_max}),
            "checkpoint": job.checkpoint.model_copy(update={"every_steps": self.every_steps}),
        }
        context.job = job.model_copy(update=changes)
        self.plan = plan(1)
        self.generation = Generation(context, self.plan, 0, lone_groups(), 0, lambda name: None)

    def prepare(self, following: Plan) -> None:
        """Receive the plan and report its groups as formed."""
        self.box.put_plan(following)
        self.box.plans.start_forming()
        assert self.box.plans.formed(following.generation)

    def loop(self) -> TrainingLoop:
        return TrainingLoop(self.generation, self.plan, self.state, CALENDAR, self.box, PhaseClock(), NoCache(), self.seen)

    def run(self, loop: TrainingLoop | None = None) -> LoopEnd:
        loop = loop or self.loop()
        while not isinstance(due := loop.advance(), LoopEnd):
            self.act(due)
        assert loop.advance() == due, "a loop that has ended goes no further"
        return due

    def act(self, due: Due) -> None:
        match due:
            case VotePassed(first, given_up):
                self.asked += ["first vote"] * first + [f"given up: {given_up}"] * bool(given_up)
                self.after_vote()
            case IntervalDue():
                close_interval(self.generation, self.state, CALENDAR)
            case CheckpointDue(before_freeze, answers_wish):
                self.asked.append(f"checkpoint {self.state.step}{' before a freeze' if before_freeze else ''}")
                if answers_wish:
                    self.box.put_notice(checkpoint=False)
            case FreezeDue(decision):
                self.asked.append(f"applied {decision.freeze_point} after {self.state.step}")
                self.generation.freeze_to(decision.freeze_point)
            case RollbackDue(decision):
                self.asked.append(f"roll back to {decision.rollback_to_step}")
                self.state.decision_number = decision.number


class NoCache:
    def take_counts(self) -> tuple[int, int]:
        return 0, 0


def plan(counter: int, **fields: Any) -> Plan:
    placement = Layout(1, 1).placement(0).model_copy(update={"leaf_bounds": (0, 2)})
    base = {"lineage": 0, "start": "fresh", "freeze_point": 0, "placement": placement}
    return Plan(generation=GenerationId(incarnation=1, counter=counter), **(base | fields))


def decision(freeze_point: int, **fields: object) -> Decision:
    return Decision(
        **({"number": 1, "interval": 1, "effective_step": 7, "freeze_point": freeze_point, "kind": "freeze"} | fields)
    )


def test_a_run_goes_to_its_end_with_every_step_recorded_once() -> None:
    bench = Bench()
    bench.box.put_decision(decision(2))
    ended = bench.run()
    assert ended.how is Ended.FINISHED
    records = bench.state.records
    assert [record.step for record in records] == list(range(1, 10))
    assert [record.freeze_point for record in records] == [0] * 6 + [2] * 3
    assert all(len(record.unit_gradient_norms) == NUM_UNITS for record in records)
    assert [record.unit_gradient_norms[1] > 0.0 for record in records] == [True] * 6 + [False] * 3
    assert len({record.numerics_hash for record in records}) == 9
    assert bench.asked == ["first vote", "checkpoint 6 before a freeze", "applied 2 after 6"]


def test_interval_statistics_say_what_the_steps_said() -> None:
    bench = Bench()
    bench.box.put_decision(decision(0, kind="keep"))
    bench.run()
    first, second = bench.state.statistics
    records = bench.state.records
    assert (first.first_step, first.last_step, second.first_step, second.last_step) == (1, 4, 5, 8)
    for unit in range(NUM_UNITS):
        mean_square = sum(record.unit_gradient_norms[unit] ** 2 for record in records[:4]) / 4
        assert first.unit_gradient_norms[unit] == pytest.approx(mean_square**0.5, rel=1e-12)
    assert first.loss_mean == pytest.approx(sum(record.loss for record in records[:4]) / 4, rel=1e-12)
    assert first.guard is not None and len(first.guard.losses) == 9
    assert first.guard.metrics["loss"] == pytest.approx(sum(first.guard.losses) / 9)
    assert records[3].evaluation == first.guard.metrics
    assert first.learning_rate_peak == max(record.learning_rate for record in records[:4])


def test_a_batch_that_grows_ends_with_the_part_of_an_epoch_that_the_job_says() -> None:
    bench = Bench()
    loop = bench.loop()
    changes = {"batch": "per_replica", "steps": None, "epochs": 20 / len(bench.generation.context.data.train)}
    loop.job = loop.job.model_copy(update={"training": loop.job.training.model_copy(update=changes)})
    assert bench.run(loop).how is Ended.FINISHED
    assert bench.state.step == 3, "the third batch of 8 has the twentieth sample"


def test_a_decision_that_does_not_come_is_void_and_says_so() -> None:
    bench = Bench(wait_seconds=0.0)
    assert bench.run().how is Ended.FINISHED
    assert bench.state.freeze_point == 0
    assert [item.void for item in bench.state.decisions] == [True]
    assert bench.asked.count("given up: 1") == 1


def test_a_late_decision_is_waited_for_with_stepless_votes() -> None:
    bench = Bench(wait_seconds=600.0)
    votes: list[int] = []

    def count() -> None:
        votes.append(bench.state.step)
        if votes.count(6) == 3:
            bench.box.put_decision(decision(3))

    bench.after_vote = count
    started = time.monotonic()
    assert bench.run().how is Ended.FINISHED
    assert bench.state.freeze_point == 3
    assert votes.count(6) >= 3 and time.monotonic() - started < 300.0
    assert [record.step for record in bench.state.records] == list(range(1, 10)), "no step was redone or lost"


def test_a_wait_that_lasts_too_long_gives_up() -> None:
    bench = Bench(wait_seconds=0.3)
    assert bench.run().how is Ended.FINISHED
    assert bench.state.decisions[0].void and bench.state.step == 9


def test_a_rollback_is_due_once() -> None:
    bench = Bench()
    bench.box.put_decision(decision(0, kind="rollback", rollback_to_step=2, lineage=1))
    bench.run()
    assert bench.asked.count("roll back to 2") == 1


def test_a_drain_ends_after_the_next_vote_and_not_after_the_last_step() -> None:
    bench = Bench()
    bench.box.put_notice(drain="asked")
    assert bench.run().how is Ended.DRAINED
    assert bench.state.step == 1
    assert [record.step for record in bench.state.records] == [1], "a last vote without a step made it stable"
    assert bench.state.unconfirmed is None
    late = Bench()
    late.box.put_decision(decision(0, kind="keep"))
    late.after_vote = lambda: late.box.put_notice(drain="asked") if late.state.step == 8 else None
    assert late.run().how is Ended.FINISHED
    assert late.state.step == 9


def test_checkpoints_come_when_asked_for_and_every_so_many_steps() -> None:
    bench = Bench(every_steps=4)
    bench.box.put_decision(decision(0, kind="keep"))
    bench.box.put_notice(checkpoint=True)
    bench.run()
    assert [line for line in bench.asked if line.startswith("checkpoint")] == ["checkpoint 1", "checkpoint 4", "checkpoint 8"]
    assert bench.box.checkpoint is False


def test_a_switch_happens_in_its_window_under_its_decision() -> None:
    bench = Bench()
    bench.box.put_decision(decision(2))
    following = plan(2, start="continue", base=GenerationId(incarnation=1, counter=1), decision_number=1,
                     switch_from=6, switch_until=20)  # fmt: skip
    bench.prepare(following)
    bench.box.plans.all_ready(2)
    ended = bench.run()
    assert (ended.how, ended.plan) == (Ended.SWITCHED, following)
    assert bench.state.step == 7, "the vote of step 6 adopts the decision; a vote that does so does not switch"
    assert bench.state.freeze_point == 2


def test_the_last_vote_switches_to_nothing() -> None:
    bench = Bench()
    following = plan(2, start="continue", base=GenerationId(incarnation=1, counter=1), switch_from=1, switch_until=20)
    bench.prepare(following)
    bench.box.put_notice(drain="asked")
    votes = []

    def make_ready() -> None:
        votes.append(bench.state.step)
        bench.box.plans.all_ready(2)

    bench.after_vote = make_ready
    assert bench.run().how is Ended.DRAINED
    assert votes == [1, 1], "the step's vote and the last one"


def test_a_recovery_takes_the_checkpoint_that_the_failure_may_have_torn() -> None:
    bench = Bench(every_steps=4)
    bench.box.put_decision(decision(0, kind="keep"))
    bench.plan = bench.plan.model_copy(update={"start": "survivors"})
    bench.state.step = 4
    assert [bench.loop().advance() for _ in range(2)] == [IntervalDue(), IntervalDue()], "an open interval comes first"
    bench.state.interval = bench.state.interval.model_copy(update={"first_step": 5})
    loop = bench.loop()
    assert loop.advance() == CheckpointDue()
    assert loop.advance() == VotePassed(first=True), "and once"


def test_whatever_is_due_between_two_steps_comes_in_one_order() -> None:
    """A checkpoint, a switch and the end of an interval at once; a decision leaves the rest to the next vote."""
    bench = Bench(every_steps=4)
    following = plan(2, start="continue", base=GenerationId(incarnation=1, counter=1), switch_from=4, switch_until=20)
    bench.prepare(following)
    bench.box.plans.all_ready(2)
    order: list[Due] = []
    loop, act = bench.loop(), bench.act
    bench.act = lambda due: (order.append(due), act(due))[1]  # type: ignore[method-assign]
    end = bench.run(loop)
    at_four = order[[isinstance(due, IntervalDue) for due in order].index(True) - 1 :]
    assert [*at_four, end] == [
        VotePassed(first=False), IntervalDue(), CheckpointDue(answers_wish=True), LoopEnd(Ended.SWITCHED, following)
    ]  # fmt: skip
    assert bench.state.step == 4


def test_each_row_of_the_order_says_why_it_stands_there() -> None:
    assert all(row.why_here for row in BETWEEN_STEPS)
    assert len({row.find for row in BETWEEN_STEPS}) == len(BETWEEN_STEPS)


def spoil(bench: Bench, steps: set[int]) -> None:
    """Make the losses of these steps NaN."""
    whole = bench.generation.compute

    def compute(step: int) -> object:
        gradients = whole(step)
        if step in steps:
            return replace(gradients, losses=dict.fromkeys(gradients.losses, float("nan")))
        return gradients

    bench.generation.compute = compute  # type: ignore[method-assign]


def test_a_step_that_is_not_finite_is_refused_by_number_and_the_rate_waits() -> None:
    bench = Bench()
    bench.box.put_decision(decision(0, kind="keep"))
    spoil(bench, {3})
    before: dict[int, torch.Tensor] = {}
    parameter = next(bench.generation.context.cut.units[3].parameters())
    bench.after_vote = lambda: before.setdefault(bench.state.step, parameter.detach().clone())
    assert bench.run().how is Ended.FINISHED
    records = bench.state.records
    assert [record.refused for record in records] == [step == 3 for step in range(1, 10)]
    assert (bench.state.accepted_steps, bench.state.refused_steps) == (8, 1)
    assert torch.equal(before[2], before[3]), "a refused step changes no weight"
    undisturbed = Bench()
    undisturbed.box.put_decision(decision(0, kind="keep"))
    undisturbed.run()
    rates = [record.learning_rate for record in undisturbed.state.records]
    assert [record.learning_rate for record in records if not record.refused] == rates[:8]
    assert bench.state.statistics[0].accepted_steps == 3


def test_too_many_refused_steps_end_the_run_with_unit_samples_and_remedy() -> None:
    bench = Bench(refused_steps_max=1)
    spoil(bench, {2, 3})
    ended = bench.run()
    assert ended.how is Ended.FAILED
    assert [(record.step, record.refused) for record in bench.state.records] == [(1, False), (2, True), (3, True)]
    assert "2 steps had non-finite values, more than training.refused_steps_max 1" in ended.message
    assert "samples [" in ended.message and "lower training.optimizer.learning_rate" in ended.message
