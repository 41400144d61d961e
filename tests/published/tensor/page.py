"""Writes docs/comparison/tensor.md and its picture."""

from collections.abc import Sequence
from pathlib import Path

from frostline_controller.planner.tensor.traffic import Axes
from frostline_controller.simulation.pictures import standalone
from tests.published.tensor.layouts import figures
from tests.published.tensor.picture import NAME, map_chart
from tests.published.tensor.rows import (
    GOAL,
    MAP_RANKS,
    check_rows,
    crossover,
    map_places,
    ours_from_sequences,
    search_rows,
    setting_rows,
    traffic_rows,
)

PAGE = "tensor.md"
PICTURE = f"{NAME}.svg"

HEAD = """# Layouts of tensor parallelism, by formula

Written by `python -m tests.published.tensor` from [its figures and our constants](../../tests/published/tensor/figures.yaml) and
[the planner's own formula of traffic](../../controller/frostline_controller/planner/tensor/traffic.py); do not edit. A test
writes it again and compares. Nothing here was trained: this is paper. A run of Frostline can have a depth (`placement.tp_depth`),
and sends more along it than this formula's least, since activations of the hidden width stay whole on each worker
(`traffic_in_runs` beside the formula).

What it says. The four check values of 3-D tensor parallelism (arXiv 2105.14450) come out to the digit. Its headline, 2.32 times
as fast as 1-D and 1.57 times as fast as 2-D on 64 V100, comes out as {over_1d:.2f} and {over_2d:.2f} with constants that were
chosen so that it does: a fit, not a confirmation. On that cluster, with that batch, ours (columns within a node times data
parallelism with sharded weights) runs at {ours:.2f} of 3-D's speed; it catches up from {sequences:,} sequences a step on. On
nodes of today it is quicker than 1-D, 2-D, 3-D and planes in {wins} of the {places} places of the map.

P ranks are columns c x depth d x replicas r; M tokens, h the hidden width, q the side of a square or a cube. A block is query,
key and value, the attention's output and a feed-forward four times as wide; its forward and backward are counted.

**Ours is what a run does** without a depth. It divides weights by columns times replicas, c r: with `training.state_ranges` of
at least r and `placement.shard` a worker of a group has its replica's ranges of its own tiles
([ADR 17](../adr/0017-state-sharding.md), 8), of weights and moments with `use`, of moments alone with `step`. What no tile cuts,
norms and the biases of row layers in a block, is divided by r alone, and is left out of the counts here. A
fixed order of sums adds nothing.
"""

ABOUT_CHECKS = "1-D over 3-D, elements a rank receives in the forward of a feed-forward; goal: the published digits."

ABOUT_TRAFFIC = """M = 16,384 tokens, h = 4,096, P = 64. Every row but 2-D is the same formula with other degrees:
2 / P (4 (c - 1) + 12 (d - 1)) Mh + 24 / P (r - 1) h^2. So the third axis of 3-D is data parallelism whose weights are sharded,
and a plane times such replicas is 3-D with sides of its own. Exact sums in a fixed order add nothing to these counts. Weights
are gathered once for all tokens here; a replica that gathers them anew for each of m micro-batches (shard: use) sends the last
term m times, one that does so once a step (shard: step) once. 3-D sends less than 1-D where tokens exceed {crossovers} hidden
widths on {ranks} ranks."""

ABOUT_HEADLINE = """Seconds of a block: its FLOPs over all ranks, and its traffic, nothing overlapped. Ranks of a node have 60
GB/s each among them, and four of them share the node's way out; 1-D sums within nodes first; axes lie in the order that takes
the least. Goal: both ratios within 5 %. The published table of widths and batches was not at hand, so constants are stated, not
known.

Why rows differ:

- **Other constants.** Both ratios rise as the network gets slower or GPUs faster, since a larger share of the time is traffic.
- **No nodes.** Where every rank has the same link to every other, 2-D loses far less: what costs it is the way out that four
  GPUs share. Ours has no columns there, since no node holds two ranks.
- **Ours is behind 3-D here.** A step of {sequences} sequences has {tokens:,} tokens, {times:.0f} times the width. Sixteen
  replicas gather and sum weights, 360 h^2 / P over the network; the cube has four, 72 h^2 / P. Activations of ours stay within a
  node. The weights' share shrinks as batches grow. 3-D, in turn, needs every product of a block cut over 16 nodes.
- **The best of all shapes** has columns, depth and replicas of its own: the cube is one of up to 28."""

ABOUT_MAP = """Nodes of eight: 200 GB/s a rank inside, 400 GB/s a node's way out, 250 TFLOP/s, bfloat16, sequences of 2,048. A
square is the quickest of 1-D (all ranks as columns), 2-D, 3-D and planes (columns times depth, no replicas); 2-D needs a square
of ranks, 3-D a cube. A dot: columns within a node times sharded data parallelism is quicker than all of them. It needs a
sequence for each replica, so on the left, where tokens are few, it is left with columns across nodes."""

ABOUT_SEARCH = """On the same nodes, over the best of all columns x depth x replicas: 1.00 is as quick. Depth pays where a
replica must span nodes, because the batch allows no more replicas. Below 1.00 the cube's replicas have less than a sequence
each, which the search does not allow itself."""


def write_page(folder: Path) -> list[Path]:
    """Write the page and its picture to `folder`; returns their paths, the page first."""
    written = [folder / PAGE, folder / PICTURE]
    written[0].write_text(text(), encoding="utf-8")
    written[1].write_text(standalone(map_chart()), encoding="utf-8")
    return written


def text() -> str:
    """Return the page's text."""
    fit, reported = setting_rows()[0], figures()["settings"][0]
    places = [place for ranks in MAP_RANKS for place in map_places(ranks)]
    tokens = reported["sequences"] * figures()["sequence"]
    head = {
        "over_1d": fit.over_1d, "over_2d": fit.over_2d, "ours": fit.ours_over_3d, "sequences": ours_from_sequences(),
        "wins": sum(place.ours_wins for place in places), "places": len(places),
    }  # fmt: skip
    ranks = (8, 27, 64, 512)
    crossings = {"crossovers": _listed(f"{crossover(one):.2g}" for one in ranks), "ranks": _listed(map(str, ranks))}
    parts = [
        HEAD.format(**head),
        f"## The check values\n\n{ABOUT_CHECKS}\n",
        _checks(),
        "\n## What a rank receives\n",
        _traffic(),
        "\n" + ABOUT_TRAFFIC.format(**crossings),
        "\n## The headline\n",
        _headline(),
        "\n" + ABOUT_HEADLINE.format(sequences=reported["sequences"], tokens=tokens, times=tokens / reported["hidden"]),
        "\n## The map\n\n" + ABOUT_MAP,
        f"\n![The quickest layout of a block, by tokens and width]({PICTURE})\n",
        "## Against the best of all shapes\n\n" + ABOUT_SEARCH + "\n",
        _search(),
    ]
    return "\n".join(parts) + "\n"


def _checks() -> str:
    lines = ["| | published | computed | |", "|---|---:|---:|---|"]
    for row in check_rows():
        lines.append(f"| {row.name} | {row.published:.2f} | {row.simulated:.3f} | {'met' if row.met else '**not met**'} |")
    return "\n".join(lines)


def _traffic() -> str:
    lines = ["| layout | formula | million elements |", "|---|---|---:|"]
    return "\n".join([*lines, *(f"| {name} | {formula} | {elements / 1e6:,.1f} |" for name, formula, elements in traffic_rows())])


def _headline() -> str:
    goal = figures()["headline"]
    lines = [
        "| constants | 3-D over 1-D | 3-D over 2-D | ours | ours over 3-D | best of all | best over 3-D |",
        "|---|---:|---:|---|---:|---|---:|",
        f"| published | {goal['over_1d']:.2f}x | {goal['over_2d']:.2f}x | | | | |",
    ]
    for row in setting_rows():
        ratios = " | ".join(
            f"{value:.2f}x" if abs(value / wanted - 1) <= GOAL else f"**{value:.2f}x**"
            for value, wanted in ((row.over_1d, goal["over_1d"]), (row.over_2d, goal["over_2d"]))
        )
        own, best = _axes(row.ours), _axes(row.best)
        lines.append(f"| {row.name} | {ratios} | {own} | {row.ours_over_3d:.2f}x | {best} | {row.best_over_3d:.2f}x |")
    return "\n".join(lines)


def _search() -> str:
    lines = ["| ranks | width | tokens | best of all | ours | 3-D | 1-D |", "|---:|---:|---:|---|---:|---:|---:|"]
    for ranks, hidden, tokens, best, *over in search_rows():
        lines.append(f"| {ranks} | {hidden:,} | {tokens:,} | {_axes(best)} | {' | '.join(f'{one:.2f}' for one in over)} |")
    return "\n".join(lines)


def _axes(axes: Axes) -> str:
    return f"{axes.columns} x {axes.depth} x {axes.replicas}"


def _listed(words: Sequence[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} and {last}"
