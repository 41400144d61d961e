"""The page's figures, one by one."""

from dataclasses import dataclass

from frostline_controller.planner.tensor.traffic import FEED_FORWARD, Axes, cube, traffic
from tests.published.rows import Row
from tests.published.tensor.layouts import (
    Machine,
    Work,
    axes_seconds,
    figures,
    machine_of,
    of_layouts,
    ours,
    shapes,
    two_d_traffic,
)

GOAL = 0.05
MAP_RANKS = (8, 64, 512)
MAP_TOKENS = tuple(1 << power for power in range(11, 22))
MAP_WIDTHS = tuple(round(1024 * 2 ** (half / 2) / 64) * 64 for half in range(9))


def check_rows() -> list[Row]:
    """Return the rows of 1-D over 3-D for the forward pass of a feed-forward; published to two digits."""
    rows = []
    for reported in figures()["check_values"]:
        ranks, tokens, hidden = reported["ranks"], reported["tokens"], reported["hidden"]
        pair = (Axes(columns=ranks), cube(round(ranks ** (1 / 3))))
        one, three = (traffic(axes, tokens, hidden, FEED_FORWARD, backward=False).total for axes in pair)
        rows.append(
            Row(f"{ranks} ranks, {tokens:,} tokens, width {hidden:,}", reported["ratio"], one / three, 0.005 / reported["ratio"])
        )
    return rows


def traffic_rows() -> list[tuple[str, str, float]]:
    """Return (layout, formula, elements that a rank of 64 receives for a block's forward and backward)."""
    ranks, tokens, hidden = 64, 16384, 4096
    side, mixed = cube(4), Axes(columns=8, replicas=8)
    return [
        ("1-D", "8 (P - 1) / P Mh", traffic(Axes(columns=ranks), tokens, hidden).total),
        ("2-D (SUMMA)", "(q - 1) / q^2 (14 Mh + 24 h^2)", sum(two_d_traffic(ranks, tokens, hidden))),
        ("3-D, copies kept", "(q - 1) / q^3 (32 Mh + 24 h^2)", traffic(side, tokens, hidden).total),
        ("3-D, gathered again", "(q - 1) / q^3 (39 Mh + 36 h^2)", traffic(side, tokens, hidden, gathered_again=True).total),
        ("plane, 16 columns x 4", "2 / P (4 (c - 1) + 12 (d - 1)) Mh", traffic(Axes(16, 4), tokens, hidden).total),
        ("sharded data parallelism", "24 (r - 1) / r h^2", traffic(Axes(replicas=ranks), tokens, hidden).total),
        ("8 columns x 8 replicas, sharded", "8 (c - 1) / P Mh + 24 (r - 1) / P h^2", traffic(mixed, tokens, hidden).total),
    ]  # fmt: skip


def crossover(ranks: int) -> float:
    """Return the ratio of tokens to hidden width from which 3-D sends less than 1-D, for a whole block, with copies kept."""
    one, three = Axes(columns=ranks), cube(round(ranks ** (1 / 3)))
    weights = traffic(three, 0, 1).total
    saved = traffic(one, 1, 1).total - (traffic(three, 1, 1).total - weights)
    return weights / saved


@dataclass(frozen=True)
class Setting:
    """A setting of the headline. over_1d, over_2d: 3-D over 1-D and 2-D. best: the best of all columns x depth x replicas."""

    name: str
    over_1d: float
    over_2d: float
    ours: Axes
    ours_over_3d: float
    best: Axes
    best_over_3d: float


def setting_rows() -> list[Setting]:
    """Return the headline's layouts with each setting's constants, and ours on the same cluster."""
    rows = []
    for reported in figures()["settings"]:
        work, machine = (
            Work(reported["sequences"] * figures()["sequence"], reported["hidden"], figures()["sequence"]),
            machine_of(reported),
        )
        found, own = (
            of_layouts(work, figures()["headline"]["ranks"], machine),
            ours(work, figures()["headline"]["ranks"], machine),
        )
        every = shapes(work, figures()["headline"]["ranks"])
        best = min(every, key=lambda axes, w=work, m=machine: axes_seconds(axes, w, m))
        three = found["3-D"]
        rows.append(
            Setting(
                reported["name"],
                found["1-D"] / three,
                found["2-D"] / three,
                own,
                three / axes_seconds(own, work, machine),
                best,
                three / axes_seconds(best, work, machine),
            )
        )
    return rows


def ours_from_sequences(limit: int = 1 << 14) -> int:
    """Return the number of sequences of the fit's step from which ours takes no longer than 3-D on its cluster."""
    reported = figures()["settings"][0]
    machine, ranks = machine_of(reported), figures()["headline"]["ranks"]
    for sequences in range(reported["sequences"], limit, 16):
        work = Work(sequences * figures()["sequence"], reported["hidden"], figures()["sequence"])
        if axes_seconds(ours(work, ranks, machine), work, machine) <= of_layouts(work, ranks, machine)["3-D"]:
            return sequences
    return limit


@dataclass(frozen=True)
class Place:
    """A place of the map. best: the quickest layout. ours_wins: whether columns x sharded data parallelism are quicker."""

    tokens: int
    hidden: int
    best: str
    ours_wins: bool


def map_places(ranks: int) -> list[Place]:
    """Return the map of so many ranks."""
    machine, sequence = machine_of(figures()["today"]), figures()["today"]["sequence"]
    return [_place(Work(tokens, hidden, sequence), ranks, machine) for tokens in MAP_TOKENS for hidden in MAP_WIDTHS]


def _place(work: Work, ranks: int, machine: Machine) -> Place:
    found = of_layouts(work, ranks, machine)
    best = min(found, key=lambda name: found[name])
    return Place(work.tokens, work.hidden, best, axes_seconds(ours(work, ranks, machine), work, machine) < found[best])


def search_rows() -> list[tuple[int, int, int, Axes, float, float, float]]:
    """Return (ranks, width, tokens, best of all shapes; ours, the cube and 1-D over the best), by seconds, on today's nodes."""
    machine, sequence, rows = machine_of(figures()["today"]), figures()["today"]["sequence"], []
    for ranks in MAP_RANKS:
        for hidden in (1024, 4096, 12288):
            for tokens in (8192, 131072, 1048576):
                work = Work(tokens, hidden, sequence)
                best = min(shapes(work, ranks), key=lambda axes, w=work: axes_seconds(axes, w, machine))
                least, found = axes_seconds(best, work, machine), of_layouts(work, ranks, machine)
                own = axes_seconds(ours(work, ranks, machine), work, machine)
                rows.append((ranks, hidden, tokens, best, own / least, found["3-D"] / least, found["1-D"] / least))
    return rows
