"""The cost of a preemption: SIGKILL of one of four replicas to the next committed step, beside four peers."""

import math

from tests.benchmarks.measuring import Effort, Report, Row, Spread, ratios
from tests.benchmarks.peer_worlds import Dlrover, Nvrx, Torchft, Torchrun
from tests.benchmarks.worlds import PATIENCE_SECONDS, Ours, World

PAIRS = 20
GOAL_SECONDS = 1.5
CASE = "digits, (1, 4)"
DLROVER_EVERY = 4
"""DLRover is measured in one of so many pairs: it is torchrun's restart under another agent, and takes as long."""
PEERS = {"torchft": Torchft, "nvrx": Nvrx, "torchrun": Torchrun, "dlrover": Dlrover}
PIPELINES = {"(4, 1)": (4, 1), "(2, 2)": (2, 2)}
"""Shapes that no peer has; only our recovery is measured there."""


def recovery(effort: Effort) -> Report:
    """Measure the seconds from the kill to the next committed step."""
    ways = {"ours": Ours, **PEERS}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for pair in range(effort.pairs(PAIRS)):
        for name in ways if pair % 2 == 0 else reversed(ways):
            if name == "dlrover" and pair % DLROVER_EVERY:
                continue
            kill = _one_kill if name == "ours" else _one_kill_of_a_peer
            seconds[name].append(kill(ways[name](), pair))
        print(f"  pair {pair}: " + ", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items()), flush=True)
    stuck = {name: sum(map(math.isnan, values)) for name, values in seconds.items()}
    medians = {f"{name} s": Spread.of([one for one in values if not math.isnan(one)]).median for name, values in seconds.items()}
    late = f"did not start, or go on, within {PATIENCE_SECONDS:.0f} s in"
    never = ", ".join(f"{name} {late} {count}" for name, count in stuck.items() if count)
    rows = [
        Row(CASE, "kill to next committed step", "s", Spread.of(seconds["ours"]), medians, at_most=GOAL_SECONDS, note=never),
        *(Row(CASE, f"{name} / ours", "x", _ratios(seconds[name], seconds["ours"], name), at_least=1.0) for name in PEERS),
    ]
    for shape, (pp_degree, dp_degree) in PIPELINES.items():
        taken = [_one_kill(Ours(pp_degree, dp_degree), pair) for pair in range(effort.pairs(6))]
        rows.append(Row(f"digits, {shape}", "kill to next committed step", "s", Spread.of(taken), at_most=GOAL_SECONDS))
    return Report(
        "A killed worker: seconds to the next committed step",
        "Four workers train the digits model; one of them is killed by SIGKILL at a random moment, and the clock runs until the "
        "first step that a world without it has committed. Ours is `frostline run` with everything on: the survivors form a new "
        "generation in their processes, at the step that was committed, and nothing is computed twice. torchft (0.2, managed "
        "all-reduce over gloo, 5 s timeouts, heartbeats lost after 1 s) drops the step under way and goes on with three. "
        "nvrx is NVIDIA's resiliency extension (0.4.1, in-process restart over gloo, 5 s timeouts, checks every 0.2 s): the "
        "training function begins again in the three processes that are left, with the weights that they hold; nobody replaces "
        "the fourth, so it has no place in the benchmarks of a replacement. "
        "torchrun starts all four processes again and loads the checkpoint of every tenth step; the steps since then, which it "
        "computes again, are not counted against it. DLRover (0.6.1) does the same under its own agent and master, in every "
        "fourth pair. One kill a start, the systems in turns; pairs in which a peer did not go on count for the others alone. "
        "A pipeline's shapes have no peer: no other system can lose a stage.",
        rows,
    )


def _ratios(peer: list[float], ours: list[float], name: str) -> Spread:
    """Return peer / ours over the pairs in which the peer has continued."""
    if name == "dlrover":
        ours = ours[::DLROVER_EVERY]
    return Spread.of([ratio for ratio in ratios(peer, ours) if not math.isnan(ratio)])


def _one_kill_of_a_peer(world: World, seed: int) -> float:
    """Return the peer's seconds; NaN if it does not start, or go on, in time, so that the other pairs still count."""
    try:
        return _one_kill(world, seed)
    except TimeoutError as error:
        print(f"  pair {seed}: {error}", flush=True)
        return math.nan


def _one_kill(world: World, seed: int) -> float:
    try:
        world.start()
        killed = world.kill(seed)
        return world.next_commit(killed).time - killed
    finally:
        world.end()
