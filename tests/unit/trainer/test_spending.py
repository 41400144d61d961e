"""A worker's report of its time by phase: each second once, whatever device or failure is in between."""

import time

import pytest

from frostline_contract.phases import Phase
from frostline_contract.plan import GenerationId
from frostline_trainer.generations.messages import heartbeat
from frostline_trainer.step.device_trail import Spent
from frostline_trainer.step.link import Links
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.spending import Spending
from frostline_trainer.transport.waiting import blocked


def reported(spending: Spending) -> dict[str, tuple[float, float]]:
    return {phase: (one.seconds, one.waiting) for phase, one in spending.so_far().items()}


def test_the_clock_tells_of_all_time_since_the_admission() -> None:
    clock = PhaseClock()
    time.sleep(0.05)
    clock.admitted()
    began = time.monotonic()
    clock.enter(Phase.RESHAPE)
    clock.enter(Phase.SCHEDULE)
    with blocked():
        time.sleep(0.1)
        seen = clock.spent()[Phase.SCHEDULE]
        assert 0.1 <= seen.waiting <= seen.seconds, "a wait that goes on counts"
    clock.enter(Phase.COMMIT)
    clock.take_parts()
    before = time.monotonic() - began
    request = heartbeat("w", 1, clock, GenerationId(incarnation=1, counter=1), Links(), None)
    after = time.monotonic() - began
    assert before <= sum(request.spending.seconds.values()) <= after + 1e-3, "what came before the admission is not the run's"
    assert request.spending.waiting_seconds[Phase.SCHEDULE] >= 0.1


def test_a_step_that_comes_to_nothing_is_the_recoverys_with_the_way_back_into_training() -> None:
    spending = Spending()
    spending.add(Phase.START, 9.0, 0.0)
    spending.add(Phase.SCHEDULE, 1.0, 0.5)
    spending.settle({})
    for phase, seconds in ((Phase.BETWEEN, 1.0), (Phase.LOAD, 2.0), (Phase.SCHEDULE, 3.0)):
        spending.add(phase, seconds, 0.0)
    spending.lose()
    for phase, seconds in ((Phase.RECOVERY, 4.0), (Phase.RESHAPE, 5.0), (Phase.LOAD, 6.0), (Phase.RESHAPE, 7.0)):
        spending.add(phase, seconds, 0.0)
    seconds = {phase: one[0] for phase, one in reported(spending).items()}
    lost = 2.0 + 3.0 + 4.0 + 5.0
    assert seconds == {"start": 9.0, "schedule": 1.0, "between": 1.0, "recovery": lost, "load": 6.0, "reshape": 7.0}


def test_a_device_that_runs_behind_says_how_the_threads_time_is_divided() -> None:
    """The thread stands at the fence of the norms; the device computed in the schedule, waiting a third of it."""
    spending = Spending()
    for phase, seconds in ((Phase.BETWEEN, 1.0), (Phase.SCHEDULE, 1.0), (Phase.NORMS, 7.0)):
        spending.add(phase, seconds, 0.0)
    spending.settle({Phase.SCHEDULE: Spent(3.0, 1.0), Phase.NORMS: Spent(1.0, 0.0)})
    assert reported(spending) == {"between": (1.0, 0.0), "schedule": (6.0, 2.0), "norms": (2.0, 0.0)}
    assert sum(one.seconds for one in spending.so_far().values()) == pytest.approx(9.0)


def test_who_is_in_no_plan_stands_by_from_the_moment_that_it_hears_so() -> None:
    clock = PhaseClock()
    clock.admitted()
    time.sleep(0.05)
    failed_at = time.monotonic()
    clock.enter(Phase.RECOVERY)
    clock.stand_by()
    in_recovery = time.monotonic() - failed_at
    time.sleep(0.05)
    clock.stand_by()
    assert clock.spent()[Phase.SPARE].seconds >= 0.05
    clock.enter(Phase.RESHAPE)
    time.sleep(0.02)
    clock.enter(Phase.LOAD)
    spent = {phase: one.seconds for phase, one in clock.spent().items()}
    assert spent[Phase.START] >= 0.05 and spent[Phase.SPARE] >= 0.05 and spent[Phase.RESHAPE] >= 0.02
    assert spent[Phase.RECOVERY] <= in_recovery, "neither the wait nor what it joins later is the failure's"
