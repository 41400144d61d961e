"""The pause of the others when a newcomer joins or a planned reshape happens, and the time until a killed replica is replaced."""

import math
import statistics
from collections.abc import Callable

from tests.benchmarks.measuring import Effort, Report, Row, Spread, ratios
from tests.benchmarks.peer_worlds import Torchft
from tests.benchmarks.worlds import PATIENCE_SECONDS, REPLICAS, Commit, Ours, World

PAIRS = 5
NEIGHBOURS = 10
"""Steps on either side of a change, for the usual duration of a step there."""
FIRST_RESHAPE, RESHAPE_EVERY, RESHAPES = 60, 40, ((2, 2), (4, 1), (1, 4), (2, 2), (1, 4))


def joining(effort: Effort) -> Report:
    """Measure the seconds until four replicas train again, and the extra time of the step that changes the world."""
    worlds: dict[str, Callable[[], World]] = {
        "warm": Ours,
        "cold": lambda: Ours(cold=True),
        "spare": lambda: Ours(cold=True, spares=1),
        "torchft": Torchft,
    }
    seconds: dict[str, list[float]] = {name: [] for name in worlds}
    pauses: list[float] = []
    for pair in range(effort.pairs(PAIRS)):
        for name in worlds if pair % 2 == 0 else reversed(worlds):
            join = _one_join_of_a_peer if name == "torchft" else _one_join
            taken, paused = join(worlds[name](), pair)
            seconds[name].append(taken)
            pauses += paused if name == "warm" else []
        print(f"  pair {pair}: " + ", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items()), flush=True)
    reshapes = _planned(RESHAPES[: effort.pairs(len(RESHAPES))])
    medians = {f"{name} s": Spread.of(_in_time(values)).median for name, values in seconds.items()}
    back = "kill to four replicas"
    against = Spread.of(_in_time(ratios(seconds["torchft"], seconds["cold"])))
    stuck = sum(map(math.isnan, seconds["torchft"]))
    never = f"torchft did not start, go on or come back within {PATIENCE_SECONDS:.0f} s in {stuck} pairs" if stuck else ""
    return Report(
        "A replacement joins, and a planned reshape",
        "Four replicas of the digits model, one is killed and replaced; the clock runs until a step that all four have computed "
        "again is committed, while three train on. Warm: the worker process is killed and its pod forks another from its preload "
        "process. Cold: the whole pod is killed, and its successor starts interpreters and imports torch and transformers first. "
        "Spare: the job keeps one worker more than it uses (`placement.spare_workers: 1`), which takes the killed one's place. "
        "torchft's replica is started again at once and is always cold; pairs in which it did not come back count for the others "
        "alone. A pause is what the first step of a new shape takes "
        f"longer, from commit to commit, than the median of the {NEIGHBOURS} steps before and after it; a planned reshape is one "
        "that the job file asks for at a step.",
        [
            Row("digits, (1, 4)", f"{back}, warm", "s", Spread.of(seconds["warm"]), medians),
            Row("digits, (1, 4)", f"{back}, cold", "s", Spread.of(seconds["cold"])),
            Row("digits, (1, 4)", f"{back}, one warm spare", "s", Spread.of(seconds["spare"])),
            Row("digits, (1, 4)", f"torchft / ours, {back}, cold", "x", against, at_least=1.0, note=never),
            Row("digits, (1, 4)", "pause of the others at a join", "s", Spread.of(pauses)),
            Row("digits", "pause at a planned reshape", "s", Spread.of(reshapes)),
        ],
    )


def _in_time(values: list[float]) -> list[float]:
    return [one for one in values if not math.isnan(one)]


def _one_join_of_a_peer(world: World, seed: int) -> tuple[float, list[float]]:
    """Return `_one_join`'s result; NaN if the peer does not start, go on or return in time: the other pairs must still count."""
    try:
        return _one_join(world, seed)
    except TimeoutError as error:
        print(f"  pair {seed}: {error}", flush=True)
        return math.nan, []


def _one_join(world: World, seed: int) -> tuple[float, list[float]]:
    """Return the seconds from the kill until all replicas are back, and the pause at the step that admitted the newcomer."""
    try:
        world.start()
        killed = world.kill(seed)
        world.revive()
        shrunk = world.next_commit(killed)
        full = world.wait(lambda: _full_again(world.commits(), shrunk), "four replicas again")
        world.await_full(full.time)
        return full.time - killed, [pause(world.commits(), full)]
    finally:
        world.end()


def _full_again(commits: list[Commit], first: Commit) -> Commit | None:
    """Return the first commit with all replicas, not before `first`, the first one without the killed replica; with a warm spare,
    `first` itself."""
    return next((one for one in commits if one.time >= first.time and one.members == REPLICAS), None)


def _planned(shapes: tuple[tuple[int, int], ...]) -> list[float]:
    """Return the pause at each of a run's scheduled reshapes."""
    steps = range(FIRST_RESHAPE, FIRST_RESHAPE + RESHAPE_EVERY * len(shapes), RESHAPE_EVERY)
    planned = [{"step": step, "pp_degree": pp, "dp_degree": dp} for step, (pp, dp) in zip(steps, shapes, strict=True)]
    world = Ours(reshapes=planned)
    try:
        world.start()
        last = steps[-1] + RESHAPE_EVERY
        world.wait(lambda: world.commits()[-1].step > last, f"step {last}")
        commits = world.commits()
        entered = [one for before, one in zip(commits, commits[1:], strict=False) if one.world != before.world]
        assert len(entered) == len(shapes), [(one.step, one.world) for one in entered]
        return [pause(commits, one) for one in entered]
    finally:
        world.end()


def pause(commits: list[Commit], entered: Commit) -> float:
    """Return the extra seconds of the step `entered` over the median of the steps around it."""
    place = commits.index(entered)
    gaps = [one.time - before.time for before, one in zip(commits, commits[1:], strict=False)]
    around = gaps[max(0, place - 1 - NEIGHBOURS) : place - 1] + gaps[place : place + NEIGHBOURS]
    return gaps[place - 1] - statistics.median(around)
