"""No false kills: healthy members with heavy-tailed step times, judged at their worst moments by simulated heartbeats.

A synchronous world is simulated with the trainer's own percentiles and judged by the controller's own `judge`. Deadlines are
at least the floor and five percentiles, so a verdict can be near only where some phase is older than half the floor and two
percentiles. Just before such a phase ends, all members are judged, with heartbeats of random ages.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from frostline_controller.members import hangs
from frostline_controller.members.hangs import MemberProgress, judge
from frostline_trainer.step.phases import WINDOW, tail

MEMBERS = 3
HEARTBEAT, SILENT = 0.5, 2.0
P99_STEPS = 50
"""Heartbeats carry percentiles that are at most so many steps old, and never those of the step that is judged."""


@dataclass(frozen=True)
class Load:
    """The load of a simulated world.

    median, sigma: of the log-normal time of a schedule, in seconds.
    pause_chance: the probability that cores are taken away in a phase, for up to `pause` seconds.
    """

    median: float
    sigma: float
    pause_chance: float
    pause: float


@dataclass
class Stay:
    """A member's time in a phase from `start` to `end`, waiting for others from `waits` on, after `step` was committed."""

    phase: str
    step: int
    start: float
    waits: float
    end: float


@dataclass
class Simulated:
    """One synchronous world, step by step."""

    load: Load
    floor: float
    random: random.Random
    now: list[float] = field(default_factory=lambda: [0.0] * MEMBERS)
    windows: list[dict[str, deque[float]]] = field(default_factory=lambda: [{} for _ in range(MEMBERS)])
    recent: list[deque[Stay]] = field(default_factory=lambda: [deque(maxlen=16) for _ in range(MEMBERS)])
    p99: list[dict[str, float]] = field(default_factory=lambda: [{} for _ in range(MEMBERS)])
    judged: int = 0
    verdicts: list[str] = field(default_factory=list)

    def step(self, number: int) -> None:
        before = number - 1
        spans = [self._own(m, ("load", 0.02), ("schedule", 1.0), step=before) for m in range(MEMBERS)]
        self._together("exchange", spans, before)
        spans = [self._own(m, ("norms", 0.02), step=before) for m in range(MEMBERS)]
        self._together("vote", spans, before)
        for m in range(MEMBERS):
            self._own(m, ("commit", 0.05), step=before)
            self._own(m, ("between", 0.01), step=number)
        if number % 50 == 0:
            spans = [self._own(m, ("evaluate", 3.0), step=number) for m in range(MEMBERS)]

    def _own(self, m: int, *phases: tuple[str, float], step: int) -> float:
        for phase, share in phases:
            seconds = share * self.load.median * self.random.lognormvariate(0.0, self.load.sigma)
            if self.random.random() < self.load.pause_chance:
                seconds += self.load.pause * self.random.random()
            self._stay(m, Stay(phase, step, self.now[m], float("inf"), self.now[m] + seconds))
        return self.now[m]

    def _together(self, phase: str, arrived: list[float], step: int) -> None:
        over = max(arrived) + 0.001 * self.load.median
        for m, since in enumerate(arrived):
            self._stay(m, Stay(phase, step, since, since, over))

    def _stay(self, m: int, stay: Stay) -> None:
        self.now[m] = stay.end
        self.recent[m].append(stay)
        self.windows[m].setdefault(stay.phase, deque(maxlen=WINDOW)).append(stay.end - stay.start)

    def judge_long_stays(self, number: int) -> None:
        """Judge the long stays of the step before last; by now all members are past them."""
        for m in range(MEMBERS):
            for stay in list(self.recent[m]):
                usual = max((p99.get(stay.phase, 0.0) for p99 in self.p99), default=0.0)
                if stay.step == number - 2 and stay.end - stay.start > max(self.floor / 2, 2 * usual):
                    self._judge(m, stay)
        if number % P99_STEPS == 0 or number < P99_STEPS:
            self.p99 = [{phase: tail(list(window)) for phase, window in windows.items()} for windows in self.windows]

    def _judge(self, m: int, stay: Stay) -> None:
        moment = stay.end - 1e-6
        reported = [moment if other == m else moment - self.random.uniform(0, HEARTBEAT) for other in range(MEMBERS)]
        members = [self._progress(other, reported[other], moment, stay) for other in range(MEMBERS)]
        self.judged += 1
        verdict = judge(members, self.floor, SILENT)
        if verdict is not None:
            self.verdicts.append(verdict.reason)

    def _progress(self, m: int, reported: float, moment: float, judged: Stay) -> MemberProgress:
        stay = next((one for one in self.recent[m] if one.start <= reported < one.end), self.recent[m][0])
        return MemberProgress(
            f"w{m}", True, stay.step, stay.phase, reported - stay.start, reported >= stay.waits, self.p99[m], moment - reported
        )


def simulate(load: Load, floor: float, steps: int, seed: int) -> Simulated:
    world = Simulated(load, floor, random.Random(seed))
    for number in range(1, steps + 1):
        world.step(number)
        if number > 2:
            world.judge_long_stays(number)
    return world


WORLDS = {
    # More than an hour of small steps on cores that others take away for up to a minute: the floor alone decides.
    "small steps, stolen cores": (Load(0.036, 0.8, 2e-3, 55.0), 60.0, 40_000, 100),
    # Steps about as long as the floor: the percentiles decide.
    "steps of half a minute": (Load(30.0, 0.5, 2e-3, 50.0), 60.0, 25_000, 50),
    "long steps, small floor": (Load(2.0, 0.5, 2e-3, 1.5), 2.0, 25_000, 50),
    "steps of unlike lengths": (Load(10.0, 0.7, 1e-3, 5.0), 10.0, 25_000, 50),
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_healthy_slow_member_is_never_blamed(name: str) -> None:
    load, floor, steps, least_judged = WORLDS[name]
    world = simulate(load, floor, steps, seed=7)
    assert world.verdicts == []
    assert world.judged >= least_judged, "the simulation comes near the deadlines, so that it can fail"


def test_with_a_tighter_deadline_the_same_world_would_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "DEADLINE_FACTOR", 1.0)
    load, floor, _, _ = WORLDS["steps of unlike lengths"]
    assert simulate(load, floor, 3_000, seed=7).verdicts
