"""Time on a device: the device's own phase and seconds, although the thread that launches its work is far ahead."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from frostline_contract.phases import Phase
from frostline_controller.members.stragglers import slowness
from frostline_trainer.generations.messages import heartbeat
from frostline_trainer.step.device_clock import clock_of
from frostline_trainer.step.device_trail import MARKS_MAX, Spent, Trail
from frostline_trainer.step.link import Links
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.transport.waiting import blocked, thread_blocked, waits_of
from tests.simulated_device import SimulatedDevice, TimedDevice, device_error


@pytest.fixture(autouse=True)
def own_thread() -> Iterator[None]:
    yield
    waits_of(threading.get_ident()).on_device = None


def a_step(device: TimedDevice, trail: Trail, own: float, arrives: float = 0.0, peers_done: float = 0.0) -> None:
    """Hand a step to the device: it receives at `arrives`, computes `own` seconds, and all have exchanged at `peers_done`."""
    trail.enter(Phase.SCHEDULE)
    with blocked():
        device.wait_until(arrives)
    device.compute(own)
    trail.enter(Phase.EXCHANGE)
    with blocked():
        device.wait_until(peers_done)
    trail.enter(Phase.NORMS)
    device.compute(0.5)


def test_a_step_is_told_by_the_devices_seconds_and_not_by_how_long_it_took_to_hand_it_over() -> None:
    device = TimedDevice()
    trail = Trail(lambda: device)
    a_step(device, trail, own=4.0, arrives=3.0, peers_done=10.0)
    trail.mark()
    trail.read()
    assert trail.take() == {
        Phase.SCHEDULE: Spent(7.0, 3.0),
        Phase.EXCHANGE: Spent(3.0, 3.0),
        Phase.NORMS: Spent(0.5, 0.0),
    }
    assert trail.take() == {}


def test_a_cpu_leaves_no_trail() -> None:
    clock = clock_of(torch.device("cpu"))
    trail, phases = Trail(lambda: clock), PhaseClock()
    phases.trail = trail
    phases.enter(Phase.SCHEDULE)
    with blocked():
        pass
    phases.enter(Phase.EXCHANGE)
    assert trail.place() is None and trail.take() == {}
    assert set(phases.take_parts()) == {Phase.START, Phase.SCHEDULE}
    start = clock.mark()
    assert start.query() and clock.seconds(start, clock.mark()) >= 0.0


PLACES: list[tuple[float, tuple[Phase, bool] | None]] = [
    (-1.0, (Phase.SCHEDULE, False)),
    (2.0, (Phase.SCHEDULE, True)),
    (5.0, (Phase.SCHEDULE, False)),
    (8.0, (Phase.EXCHANGE, True)),
    (10.0, (Phase.NORMS, False)),
    (10.5, None),
]
"""(how far the device of `a_step` has come, its phase and whether it waits)."""


@pytest.mark.parametrize(("now", "place"), PLACES)
def test_a_heartbeat_tells_where_the_device_is(now: float, place: tuple[Phase, bool] | None) -> None:
    device = TimedDevice(now=now)
    phases = PhaseClock()
    phases.trail = Trail(lambda: device)
    a_step(device, phases.trail, own=4.0, arrives=3.0, peers_done=10.0)
    phases.trail.mark()  # the fence
    said = heartbeat("uid/1", 3, phases, None, Links(), None)
    assert (said.device_phase, said.device_waiting) == (place or ("", False))


def test_a_place_is_as_old_as_the_device_was_last_seen_to_come_on() -> None:
    device = TimedDevice(now=-1.0)
    trail = Trail(lambda: device)
    a_step(device, trail, own=4.0)
    trail.mark()
    time.sleep(0.05)
    stuck = trail.place()
    assert stuck is not None and stuck.seconds >= 0.05
    device.now = 4.0
    came_on = trail.place()
    assert came_on is not None and came_on.phase is Phase.NORMS and came_on.seconds < stuck.seconds
    time.sleep(0.05)
    again = trail.place()
    assert again is not None and again.seconds >= 0.05
    trail.forget()
    assert trail.place() is None, "its generation is over"


def test_work_that_an_idle_device_is_given_is_no_older_than_that() -> None:
    device = TimedDevice()
    trail = Trail(lambda: device)
    trail.enter(Phase.BETWEEN)
    assert trail.place() is None
    time.sleep(0.2)
    device.now = 0.0
    given_at = time.monotonic()
    trail.enter(Phase.SCHEDULE)
    device.compute(1.0)
    trail.enter(Phase.EXCHANGE)
    place = trail.place()
    assert place is not None and place.phase is Phase.SCHEDULE
    assert place.seconds <= time.monotonic() - given_at


def test_a_broken_device_says_nothing_to_the_heartbeat() -> None:
    device = SimulatedDevice(errors={1: device_error()})
    trail = Trail(lambda: device)
    trail.enter(Phase.SCHEDULE)
    assert trail.place() is None


def test_a_trail_without_a_fence_is_bounded_and_loses_no_time() -> None:
    device = TimedDevice()
    trail = Trail(lambda: device)
    for _ in range(3 * MARKS_MAX):
        trail.enter(Phase.EVALUATE)
        device.compute(1.0)
    assert len(trail._footprints) <= MARKS_MAX + 1
    trail.mark()
    trail.read()
    assert trail.take()[Phase.EVALUATE].seconds == 3 * MARKS_MAX


def test_the_fence_is_no_wait_of_the_device() -> None:
    device = TimedDevice()
    trail = Trail(lambda: device)
    trail.enter(Phase.NORMS)
    with thread_blocked():
        device.compute(2.0)
    trail.mark()
    trail.read()
    assert trail.take() == {Phase.NORMS: Spent(2.0, 0.0)}


def busy(own: float, launching: float, fence: float) -> float:
    """Return a member's own seconds of a step that it launches in `launching` seconds; at the fence it waits for `fence`."""
    device, phases = TimedDevice(), PhaseClock()
    phases.trail = Trail(lambda: device)
    phases.enter(Phase.SCHEDULE)
    with blocked():
        device.wait_until(5.0)
    device.compute(own)
    time.sleep(launching)
    phases.enter(Phase.NORMS)
    time.sleep(fence)
    phases.trail.mark()
    phases.trail.read()
    phases.enter(Phase.VOTE)
    parts = phases.take_parts()
    assert parts[Phase.SCHEDULE] == 5.0 + own
    assert phases.p99()[Phase.SCHEDULE] == 2 * (5.0 + own), "a deadline follows from the device's seconds"
    return phases.busy_seconds()


STRAGGLERS: list[tuple[str, Callable[[], dict[str, float]], str]] = [
    ("two members read and stand at the fence, two run on", lambda: {
        "a": busy(1.0, 0.001, 0.05), "b": busy(1.0, 0.001, 0.05), "c": busy(1.0, 0.001, 0.0), "d": busy(1.0, 0.001, 0.0),
    }, ""),
    ("one device is slow, and its thread is the first at the vote", lambda: {
        "a": busy(1.0, 0.001, 0.05), "b": busy(1.0, 0.001, 0.05), "c": busy(3.0, 0.001, 0.0), "d": busy(1.0, 0.05, 0.0),
    }, "c"),
]  # fmt: skip


@pytest.mark.parametrize(("measured", "slow"), [case[1:] for case in STRAGGLERS], ids=[case[0] for case in STRAGGLERS])
def test_whose_device_computes_slowly_is_slow_and_not_whose_thread_waits(
    measured: Callable[[], dict[str, float]], slow: str
) -> None:
    seconds = measured()
    found = slowness(seconds, dict.fromkeys(seconds, 1.0))
    assert {worker for worker, factor in found.items() if factor > 1.3} == ({slow} if slow else set())
