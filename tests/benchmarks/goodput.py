"""Goodput under a preemption trace: useful steps against those that an undisturbed run would have made in the same time."""

import statistics
import time
from dataclasses import dataclass

from tests.benchmarks.measuring import Effort, Report, Row, Spread, ratios
from tests.benchmarks.peer_worlds import Torchft, Torchrun
from tests.benchmarks.worlds import Commit, Ours, World

TRACES, KILLS = 2, 3
KILL_EVERY_SECONDS, QUICK_SECONDS = 60.0, 15.0
CHECKPOINT_EVERY = 50
"""Steps between torchrun's checkpoints."""
CASE = "digits, one kill a minute"
GOAL_PERCENT = 97.0
PEERS = ("torchft", "torchrun")


@dataclass(frozen=True)
class Kill:
    """The period that begins with one kill.

    Attributes:
        share: steps made, in % of the undisturbed steps.
        rate: undisturbed steps a second.
        pace: the rate in the period's second half over the rate before the kill.
    """

    share: float
    rate: float
    pace: float


def goodput(effort: Effort) -> Report:
    """Measure the systems in turns, with several kills a turn."""
    kills: dict[str, list[Kill]] = {name: [] for name in ("ours", *PEERS)}
    for turn in range(effort.pairs(TRACES)):
        for name in kills if turn % 2 == 0 else reversed(kills):
            kills[name] += _trace(_world(name), QUICK_SECONDS if effort.quick else KILL_EVERY_SECONDS)
            reported = ", ".join(f"{kill.share:.1f} %" for kill in kills[name][-KILLS:])
            print(f"  turn {turn}: {name} {reported}", flush=True)
    shares = {name: [kill.share for kill in found] for name, found in kills.items()}
    medians = {f"{name} %": Spread.of(values).median for name, values in shares.items()}
    rates = ", ".join(f"{name} {statistics.median(kill.rate for kill in found):.1f}" for name, found in kills.items())
    paces = [100 * kill.pace for kill in kills["ours"]]
    rows = [
        Row(CASE, "share of undisturbed steps", "%", Spread.of(shares["ours"]), medians, at_least=GOAL_PERCENT,
            note=f"steps/s: {rates}"),
        *(Row(CASE, f"ours / {name}", "x", Spread.of(ratios(shares["ours"], shares[name])), at_least=1.0) for name in PEERS),
        Row(CASE, "steps a second, half a minute after / before a kill", "%", Spread.of(paces)),
    ]  # fmt: skip
    return Report(
        "Goodput under one kill a minute",
        "Four workers of the digits model, one of them killed every minute and replaced at once (torchft's by this program, the "
        f"others' by themselves), {KILLS} kills a start, the systems in turns. Counted are the steps of the minute after a kill "
        "that no failure took back, against those that the same system makes undisturbed in a minute. Its undisturbed rate is "
        "that of the half minute before the kill and of the last half of the minute after it together, so that a machine whose "
        "speed drifts favours nobody; what of a kill lasts longer than half a minute is the last row. torchrun writes a "
        f"checkpoint every {CHECKPOINT_EVERY} steps. Steps of this model are short: a larger one loses more by each that is done "
        "again.",
        rows,
    )


def _world(name: str) -> World:
    return {"ours": Ours, "torchft": Torchft, "torchrun": lambda: Torchrun(CHECKPOINT_EVERY)}[name]()


def _trace(world: World, period: float) -> list[Kill]:
    try:
        world.start()
        time.sleep(period / 2)
        killed = []
        for number in range(KILLS):
            killed.append(world.kill(number))
            world.revive()
            time.sleep(max(0.0, killed[0] + (number + 1) * period - time.time()))
        time.sleep(1.0)  # until the last steps are durable
        commits = world.commits()
        return [kill_of(commits, moment, period) for moment in killed]
    finally:
        world.end()


def kill_of(commits: list[Commit], killed: float, period: float) -> Kill:
    """Return the share and rates of the period after the kill at the moment `killed`."""
    half = period / 2
    before = (_step_at(commits, killed) - _step_at(commits, killed - half)) / half
    after = (_step_at(commits, killed + period) - _step_at(commits, killed + half)) / half
    rate = (before + after) / 2
    made = _step_at(commits, killed + period) - _step_at(commits, killed)
    return Kill(100 * made / period / rate, rate, after / before)


def _step_at(commits: list[Commit], moment: float) -> float:
    """Return the newest step at a moment, plus the part of the next step that has passed; of repeated steps the last time
    counts."""
    last = max(place for place, one in enumerate(commits) if one.time <= moment)
    here = commits[last]
    following = next((one for one in commits[last + 1 :] if one.step == here.step + 1), None)
    if following is None:
        return here.step
    return here.step + (moment - here.time) / (following.time - here.time)
