"""A tensor-parallel group's sum in tile order against the library's all-reduce of the same tensor, over gloo."""

from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds, ratios
from tests.benchmarks.members import call_all, make_plan, slowest, store_ports
from tests.benchmarks.subjects import placement_of
from tests.warm_workers import WarmWorkers

TURNS = 40
SUMS_A_TURN = 10
ROWS, WIDTHS, MEMBERS = 512, (256, 768), (2, 4)


def group_sums(effort: Effort) -> Report:
    """Measure both sums in turns for each group and width."""
    pool = WarmWorkers()
    try:
        rows = [_row(pool, members, width, effort) for members in MEMBERS for width in WIDTHS]
    finally:
        pool.close()
    return Report(
        "A group's exact sum against the library's",
        f"The sum of all members' float32 tensors of {ROWS} rows, as after each row layer: by pairs in tile order (`sum_nodes`), "
        f"and by the library's all-reduce, {SUMS_A_TURN} a turn, in turns. Two members sum by the library's all-reduce, which "
        "has the same bits; four exchange chunks, sum them in order and gather. A turn takes as long as its slowest member.",
        rows,
    )


def _row(pool: WarmWorkers, members: int, width: int, effort: Effort) -> Row:
    plan = make_plan(placement_of(1, members), store_ports(pool, members)).model_dump(mode="json")
    asked = {"plan": plan, "shape": (ROWS, width), "sums": SUMS_A_TURN, "turns": effort.pairs(TURNS)}
    answers = call_all(pool, "sum_turns", members, **asked)
    exact, library = slowest(answers, "exact"), slowest(answers, "library")
    sides = {"exact ms": milliseconds(exact) / SUMS_A_TURN, "library ms": milliseconds(library) / SUMS_A_TURN}
    return Row(f"{members} members, width {width}", "exact / library", "x", Spread.of(ratios(exact, library)), sides)
