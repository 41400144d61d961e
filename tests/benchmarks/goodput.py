"""Goodput under a preemption trace: useful steps against those that an undisturbed run would have made in the same time."""

import time
from dataclasses import dataclass

from tests.benchmarks.measuring import Effort, Report, Row, Spread
from tests.benchmarks.worlds import Ours, Torchft, Torchrun, World

KILL_EVERY_SECONDS, KILLS = 60.0, 3
QUICK_SECONDS = 15.0
CHECKPOINT_EVERY = 50
"""Steps between torchrun's checkpoints."""


@dataclass(frozen=True)
class Trace:
    """What a system made of it. share: of the undisturbed steps. kept: steps a second over all. rate: undisturbed."""

    share: float
    kept: float
    rate: float


def goodput(effort: Effort) -> Report:
    """One trace for each system, one after the other."""
    worlds = {"ours": Ours(), "torchft": Torchft(), "torchrun": Torchrun(CHECKPOINT_EVERY)}
    traces = {name: _trace(world, QUICK_SECONDS if effort.quick else KILL_EVERY_SECONDS) for name, world in worlds.items()}
    shares = {f"{name} %": 100 * trace.share for name, trace in traces.items()}
    rates = ", ".join(f"{name} {trace.rate:.1f}" for name, trace in traces.items())
    ours = 100 * traces["ours"].share
    rows = [
        Row("digits, one kill a minute", "share of undisturbed steps", "%", Spread.of([ours]), shares, note=f"steps/s: {rates}"),
        *(
            Row("digits, one kill a minute", f"ours / {name}", "x", Spread.of([ours / (100 * traces[name].share)]), at_least=1.0)
            for name in ("torchft", "torchrun")
        ),
    ]
    return Report(
        "Goodput under one kill a minute",
        "Four workers of the digits model, one of them killed every minute and replaced at once (torchft's by this program, the "
        "others' by themselves): three kills, and a minute after the last. Counted are steps that no failure took back, against "
        "those that the same system makes undisturbed in the same time, at its rate in the half minute before the first kill; "
        f"torchrun writes a checkpoint every {CHECKPOINT_EVERY} steps. Steps of this model are short: a larger one loses more by "
        "each that is done again.",
        rows,
    )


def _trace(world: World, period: float) -> Trace:
    try:
        world.start()
        first = world.commits()[-1]
        time.sleep(period / 2)
        before = world.commits()[-1]
        rate = (before.step - first.step) / (before.time - first.time)
        started = time.time()
        for number in range(KILLS):
            world.kill(number)
            world.revive()
            time.sleep(max(0.0, started + (number + 1) * period - time.time()))
        last = world.commits()[-1]
        kept = (last.step - before.step) / (time.time() - before.time)
        return Trace(kept / rate, kept, rate)
    finally:
        world.end()
