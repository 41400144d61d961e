"""The ledger: each worker-second in exactly one use, whatever happens to workers and controllers; savings by their formulas."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.lineage import LineageStart
from frostline_contract.phases import Phase
from frostline_contract.statistics import StepRecord
from frostline_controller.ledger import saved, steps
from frostline_controller.ledger.books import CLOSED_KEPT, Books
from frostline_controller.ledger.sums import Ledger, with_taken_back
from frostline_controller.ledger.uses import Use, by_use

PHASES = tuple(Phase)


@dataclass
class Life:
    """The events of one worker's life. seconds, waiting: the sums by phase that it reported. left: when it was gone."""

    admitted: float
    phase: str = Phase.START
    seconds: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    left: float | None = None


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "work", "work", "work", "tell", "tell", "die", "go", "new controller", "ask"]),
        st.integers(0, 4), st.floats(0.0, 50.0), st.sampled_from(PHASES), st.floats(0.0, 1.0),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


@given(EVENTS)
def test_every_second_between_admission_and_leaving_is_in_exactly_one_use(events: list) -> None:
    """Histories of several workers and controllers. A successor reads what the controller before had written when it was
    killed; it is checked only once workers have reported to it, which they do within a heartbeat.
    """
    now, books, lives = 0.0, Books(), {}
    for kind, number, seconds, phase, blocked in events:
        alive = {name: life for name, life in lives.items() if life.left is None}
        name = f"{number}/{sum(one.startswith(f'{number}/') for one in lives)}"
        current = next((one for one in alive if one.startswith(f"{number}/")), None)
        if kind == "join" and current is None:
            lives[name] = Life(now)
            books.admit(name, now)
        elif kind == "work":  # time passes for all; one of them changes its phase and waits a part of the time
            for one, life in alive.items():
                life.seconds[life.phase] = life.seconds.get(life.phase, 0.0) + seconds
                life.waiting[life.phase] = life.waiting.get(life.phase, 0.0) + (seconds * blocked if one == current else 0.0)
            now += seconds
            if current is not None:
                lives[current].phase = phase
        elif kind == "tell" and current is not None:
            books.receive(current, lives[current].seconds, lives[current].waiting, lives[current].phase, now)
        elif kind in ("die", "go") and current is not None:
            lives[current].left = now
            books.leave(current, now, died=kind == "die")
        elif kind == "new controller":
            books = Books.load(books.dump(now), now)
            for one, life in alive.items():
                books.receive(one, life.seconds, life.waiting, life.phase, now)
        used = books.used(now)
        there = sum((now if life.left is None else life.left) - life.admitted for life in lives.values())
        assert sum(used.values()) == pytest.approx(there, rel=1e-9, abs=1e-9)
        assert min(used.values()) >= 0.0
        moved = with_taken_back(used, seconds)
        assert sum(moved.values()) == pytest.approx(there, rel=1e-9, abs=1e-9)
    for one, life in lives.items():
        if life.left is None:
            books.receive(one, life.seconds, life.waiting, life.phase, now)
            assert books.accounts[one].sums(now) == pytest.approx(by_use(life.seconds, life.waiting)), "what it told, all of it"


def test_waiting_for_others_is_a_bubble_only_where_a_member_would_compute() -> None:
    seconds = {Phase.SCHEDULE: 10.0, Phase.EXCHANGE: 4.0, Phase.LOAD: 2.0, Phase.CHECKPOINT: 3.0, Phase.SPARE: 7.0, "newer": 1.0}
    waiting = {Phase.SCHEDULE: 6.0, Phase.EXCHANGE: 3.0, Phase.LOAD: 0.5, Phase.CHECKPOINT: 1.0}
    expected = {Use.COMPUTING: 5.0, Use.BUBBLE: 6.5, Use.EXCHANGE: 4.0, Use.DATA: 1.5, Use.CHECKPOINTS: 3.0, Use.IDLE: 7.0}
    assert by_use(seconds, waiting) == dict.fromkeys(Use, 0.0) | expected
    nonsense = {Phase.VOTE: math.nan, Phase.AUDIT: math.inf, Phase.NORMS: -3.0}
    assert by_use(seconds | nonsense, waiting | {Phase.SCHEDULE: 6.0, Phase.EXCHANGE: math.nan}) == by_use(seconds, waiting)


def test_what_follows_a_dead_workers_last_word_is_lost_and_a_leavers_is_not() -> None:
    books = Books()
    for name in ("dies", "goes"):
        books.admit(name, 0.0)
        books.receive(name, {Phase.SCHEDULE: 5.0}, {}, Phase.SCHEDULE, 5.0)
    books.leave("dies", 8.0, died=True)
    books.leave("goes", 9.0, died=False)
    used = books.used(100.0)
    assert (used[Use.LOST], used[Use.COMPUTING]) == (3.0, 5.0 + 9.0)


def test_a_worker_that_was_given_up_and_comes_back_is_counted_once() -> None:
    books = Books()
    books.receive("a", {Phase.SCHEDULE: 5.0}, {}, Phase.SCHEDULE, 5.0)
    books.leave("a", 8.0, died=True)
    books.receive("a", {Phase.SCHEDULE: 5.0}, {}, Phase.SCHEDULE, 5.0)
    assert books.used(20.0)[Use.LOST] == 3.0, "an old word opens no account again"
    books.receive("a", {Phase.SCHEDULE: 5.0, Phase.RECOVERY: 7.0}, {}, Phase.RECOVERY, 12.0)
    assert {use: one for use, one in books.used(12.0).items() if one} == {Use.COMPUTING: 5.0, Use.LOST: 7.0}


def test_time_that_no_controller_saw_is_not_counted_for_a_worker_that_never_came_back() -> None:
    """The run was ended at once and resumed the next day: the first day's pods are not charged for the night."""
    evening = Books()
    evening.receive("a", {Phase.SCHEDULE: 5.0}, {}, Phase.SCHEDULE, 100.0)
    evening.hold(4, 0.0)
    evening.hold(2, 50.0)
    morning = Books.load(evening.dump(103.0), 7.0)
    morning.hold(2, 7.0)
    assert sum(morning.used(30_000.0).values()) == 8.0
    morning.leave("a", 30_000.0, died=True)
    assert sum(morning.used(40_000.0).values()) == 8.0
    assert morning.given_back_by(17.0) == 2 * (103.0 - 50.0) + 2 * 10.0


def test_accounts_of_thousands_of_workers_are_added_up() -> None:
    books = Books()
    for number in range(3 * CLOSED_KEPT):
        books.receive(str(number), {Phase.SCHEDULE: 1.0}, {}, Phase.SCHEDULE, 1.0)
        books.leave(str(number), 2.0, died=False)
    assert len(books.accounts) == CLOSED_KEPT
    assert sum(books.used(9.0).values()) == pytest.approx(2.0 * 3 * CLOSED_KEPT)


def record(lineage: int, step: int, point: int = 0, hits: int = 0, dp: int = 1) -> StepRecord:
    return StepRecord(
        lineage=lineage, step=step, loss=1.0, learning_rate=0.1, gradient_norm=1.0, freeze_point=point, generation="1.1",
        degrees={"dp": dp, "pp": 2}, step_seconds=0.5, cache_hits=hits,
    )  # fmt: skip


def test_steps_that_a_lineage_takes_back_are_lost_and_save_nothing() -> None:
    """Steps 1 to 6; lineage 1 begins at 3 and goes to 5. Late records of lineage 0 come after that, and starts are sent again."""
    recorded = steps.Steps()
    for step in (1, 2, 3, 4, 5):
        recorded.add(record(0, step, point=2, hits=4, dp=2))
    recorded.start(LineageStart(lineage=0, starts_at_step=0))
    recorded.start(LineageStart(lineage=1, starts_at_step=3))
    for step in (4, 5):
        recorded.add(record(1, step, point=1, hits=1))
    recorded.add(record(0, 6, point=2, hits=4, dp=2))
    recorded.start(LineageStart(lineage=1, starts_at_step=3))
    recorded.start(LineageStart(lineage=0, starts_at_step=0))
    assert recorded.taken_back == 3 * 0.5 * 4
    reported = {point: (one.steps, one.replica_steps, one.hits) for point, one in recorded.by_point.items()}
    assert reported == {2: (3, 6, 12), 1: (2, 2, 2)}
    assert steps.micro_batches(recorded.by_point, 8, per_replica=False) == {2: 24, 1: 16}
    assert steps.micro_batches(recorded.by_point, 8, per_replica=True) == {2: 48, 1: 16}


def test_what_was_saved_follows_from_its_formulas() -> None:
    times = saved.UnitTimes(forward=(1.0, 2.0, 4.0), backward=(10.0, 20.0, 40.0), micro_batch_size=4, prefix_cost=2.0)
    assert saved.by_freezing({0: 100, 1: 3, 2: 5}, times) == 3 * 10.0 + 5 * 30.0
    assert saved.by_cache({1: 8, 2: 4}, times, fetch_seconds=0.25) == 8 * (0.5 - 0.25) + 4 * (1.5 - 0.25)
    assert saved.by_cache({1: 8}, times, fetch_seconds=1.0) < 0, "reading that takes longer than computing is told as it is"


def test_money_follows_from_the_price() -> None:
    ledger = Ledger(used={"computing": 1800.0, "idle": 5400.0}, saved={"pods": 3600.0}, price_per_worker_hour=3.0)
    reported = ledger.as_json()
    assert (reported["worker_seconds"], reported["cost"]["total"], reported["cost"]["saved"]) == (7200.0, 6.0, {"pods": 3.0})
    assert Ledger.of_json(reported) == Ledger.of_message(ledger.message()) == ledger
    free = ledger.model_copy(update={"price_per_worker_hour": None})
    assert free.as_json()["cost"] is None and Ledger.of_message(free.message()) == free
