"""When the hang watch judges: not by what was reported before the controller stood still."""

from types import SimpleNamespace
from typing import Any

import pytest

from frostline_controller.members.hang_watch import HELD_OFF_SECONDS_MAX, HangWatch

HEARTBEAT = 0.5


class Watch(HangWatch):
    """A hang watch with a clock of its own, which is asked in rounds whether it judges."""

    def __init__(self) -> None:
        self.now = 100.0
        controller = SimpleNamespace(heartbeat_seconds=HEARTBEAT)
        facts: Any = SimpleNamespace(clock=lambda: self.now, job=SimpleNamespace(controller=controller))
        nothing: Any = None
        super().__init__(facts, nothing, nothing, nothing, nothing)

    def judges_after(self, seconds: float) -> bool:
        self.now += seconds
        return not self._stood_still(self.now)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_rounds_in_time_judge(watch: Watch) -> None:
    assert all(watch.judges_after(seconds) for seconds in (0.05, 0.3, 0.9, 0.05))


@pytest.mark.parametrize("stall", [1.5, 4.0, 60.0])
def test_after_a_stall_the_next_heartbeats_are_waited_for(watch: Watch, stall: float) -> None:
    assert watch.judges_after(0.1)
    assert not watch.judges_after(stall)
    assert not watch.judges_after(HEARTBEAT), "the first one may say only how long its sender stood still"
    assert watch.judges_after(HEARTBEAT + 0.01)
    assert watch.judges_after(0.1)


def test_a_second_stall_is_waited_out_too(watch: Watch) -> None:
    assert [watch.judges_after(seconds) for seconds in (0.1, 3.0, 0.1, 3.0, 0.1, 1.0)] == [True, False, False, False, False, True]


def test_a_controller_whose_rounds_are_always_slow_judges_now_and_then(watch: Watch) -> None:
    judged = [watch.judges_after(1.2) for _ in range(200)]
    assert sum(judged) >= 200 * 1.2 / (HELD_OFF_SECONDS_MAX + 5.0)
