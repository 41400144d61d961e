"""Phases, waiting and stacks: a worker's reports of itself while its training thread is stuck."""

import random
import threading
import time

import pytest

from frostline_contract.plan import GenerationId
from frostline_trainer.generations.messages import heartbeat
from frostline_trainer.process.stacks import STACK_BYTES_MAX, record, stack_event
from frostline_trainer.step.link import Links
from frostline_trainer.step.phases import WINDOW, PhaseClock, percentile
from frostline_trainer.transport.waiting import blocked, waits_of
from tests.unit.trainer.group_threads import in_group


def test_the_percentile_is_the_least_value_that_99_of_100_do_not_exceed() -> None:
    values = [float(value) for value in range(1, 201)]
    random.Random(1).shuffle(values)
    assert percentile(values, 0.99) == 198.0
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([1.0] * 99 + [50.0], 0.99) == 1.0
    assert percentile([1.0] * 98 + [50.0], 0.99) == 50.0


def test_the_window_is_bounded_and_forgets() -> None:
    clock = PhaseClock()
    for _ in range(3 * WINDOW):
        clock.enter("vote")
        clock.enter("commit")
    assert {len(window) for name, window in clock._windows.items() if name != "start"} == {WINDOW}
    assert set(clock.p99()) == {"start", "vote", "commit"}
    clock.new_generation()
    assert clock.p99() == {}, "another shape takes other times"
    clock.enter("load")
    assert set(clock.p99()) == {"commit"}, "the phase that was going on belongs to the new generation"


def test_a_long_phase_is_as_old_as_its_last_part_and_lasts_as_long_as_it_does() -> None:
    clock = PhaseClock()
    clock.enter("evaluate")
    for _ in range(3):
        time.sleep(0.05)
        moved_at = time.monotonic()
        clock.moved()
    assert clock.now().seconds <= time.monotonic() - moved_at, "of the last part, not of all three"
    clock.enter("between")
    assert clock.p99()["evaluate"] >= 0.3, "its deadline follows from the whole of it; few durations count twice"


def test_waiting_for_others_is_no_work_of_ones_own() -> None:
    clock = PhaseClock()
    began = time.monotonic()
    clock.enter("schedule")
    with blocked():
        blocked_at = time.monotonic()
        time.sleep(0.2)
        seen = clock.now()
        waited = time.monotonic() - blocked_at
    assert (seen.phase, seen.waiting_seconds >= 0.2, seen.seconds >= seen.waiting_seconds) == ("schedule", True, True)
    time.sleep(0.05)
    assert clock.now().waiting_seconds == 0.0
    clock.enter("vote")
    own = time.monotonic() - began - waited
    time.sleep(0.1)
    clock.enter("between")
    parts = clock.take_parts()
    assert parts["schedule"] >= 0.25
    assert 0.05 <= clock.busy_seconds() <= own, "neither the wait nor the vote counts"
    assert clock.busy_seconds() == clock.busy_seconds(), "asking changes nothing"


def test_a_wait_inside_a_wait_counts_once_and_a_failed_one_ends() -> None:
    before, began = waits_of(threading.get_ident()).total, time.monotonic()
    with pytest.raises(ConnectionError, match="peer gone"), blocked(), blocked():
        time.sleep(0.05)
        raise ConnectionError("peer gone")
    mine = waits_of(threading.get_ident())
    assert mine.since == 0.0
    assert 0.05 <= mine.total - before <= time.monotonic() - began


def test_the_member_that_is_late_computes_and_the_others_wait() -> None:
    """Through real gloo groups: three members wait in an all-reduce for a fourth that is busy."""
    import torch

    gate, clocks = threading.Event(), {}

    def member(group) -> bool:
        clock = clocks[group.index] = PhaseClock()
        clock.enter("exchange")
        if group.index == 2:
            gate.wait(30)
        group.all_reduce_sum(torch.ones(1))
        return clock.now().waiting_seconds == 0.0

    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.extend(in_group(4, member)))
    thread.start()
    deadline = time.monotonic() + 30
    while len(clocks) < 4 or sum(clock.now().waiting_seconds > 0.1 for clock in clocks.values()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert {index for index, clock in clocks.items() if clock.now().waiting_seconds == 0.0} == {2}
    gate.set()
    thread.join(30)
    assert answers == [True] * 4


def test_a_heartbeat_says_all_that_hangs_are_judged_by() -> None:
    clock = PhaseClock()
    clock.enter("schedule")
    clock.enter("exchange")
    clock.take_parts()
    generation = GenerationId(incarnation=2, counter=7)
    with blocked():
        time.sleep(0.01)
        said = heartbeat("uid/1", 41, clock, generation, Links(), None, (3, 4))
    assert (said.step, said.phase, said.generation.counter, list(said.uncovered_pieces)) == (41, "exchange", 7, [3, 4])
    assert said.waiting_seconds >= 0.01
    assert set(said.phase_p99_seconds) == {"start", "schedule"}
    assert said.busy_seconds > 0
    assert heartbeat("uid/1", 0, PhaseClock(), None, Links(), None).busy_seconds == 0.0


def test_the_hook_runs_after_the_phase_was_entered() -> None:
    clock, seen = PhaseClock(), []
    clock.hook = lambda name: seen.append((name, clock.now().phase))
    clock.enter("vote")
    clock.enter("commit")
    assert seen == [("vote", "vote"), ("commit", "commit")]


def test_the_clock_is_cheap_enough_for_the_step() -> None:
    """Eleven entries a step; even on a busy machine they stay below a fifth of a millisecond."""
    clock = PhaseClock()
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(110):
            clock.enter("load")
        best = min(best, (time.perf_counter() - started) / 10)
    assert best < 0.0002, f"{best * 1e6:.0f} us a step"


def _stuck_in_user_code(gate: threading.Event, there: threading.Semaphore) -> None:
    there.release()
    gate.wait(120)


def test_stacks_show_where_a_deadlocked_thread_is() -> None:
    gate, there = threading.Event(), threading.Semaphore(0)
    thread = threading.Thread(target=_stuck_in_user_code, args=(gate, there), name="stuck-one")
    thread.start()
    assert there.acquire(timeout=60)
    answers: list[str] = []
    asker = threading.Thread(target=lambda: answers.append(record("it seems to hang")))
    asker.start()
    asker.join(60)
    event = stack_event("uid/9", 12, 3, "it seems to hang")
    gate.set()
    thread.join(60)
    (text,) = answers
    assert text.startswith("it seems to hang\n\nthread MainThread")
    assert "stuck-one" in text and "_stuck_in_user_code" in text
    assert (event.kind, event.step, event.lineage, event.detail["worker"]) == ("hang", 12, 3, "uid/9")
    assert "_stuck_in_user_code" in event.detail["stack"]


def test_stacks_are_bounded() -> None:
    gate, there = threading.Event(), threading.Semaphore(0)
    stuck, names = (gate, there), [f"stuck-{i}-{'ü' * 200}" for i in range(60)]
    threads = [threading.Thread(target=_stuck_in_user_code, args=stuck, name=name) for name in names]
    for thread in threads:
        thread.start()
        assert there.acquire(timeout=60)
    answers: list[str] = []
    asker = threading.Thread(target=lambda: answers.append(record("many threads")))
    asker.start()
    asker.join(60)
    gate.set()
    for thread in threads:
        thread.join(60)
    (text,) = answers
    assert len(text.encode()) <= STACK_BYTES_MAX
    assert text.endswith(f"... cut at {STACK_BYTES_MAX} bytes")
    assert f"thread MainThread ({threading.main_thread().ident})" in text, "the training thread comes first"
