"""Predictions of the published rows, and of our programs over the same slices."""

from dataclasses import dataclass
from functools import cache

from frostline_contract.operations import Kind, Operation
from frostline_contract.schedule_figures import held_at_most, timed
from frostline_contract.schedules import is_folded, schedule_named
from frostline_controller.planner.token_slices import best_slices, placed, slice_table
from tests.published.rows import Row
from tests.published.terapipe.setting import Setting, figures, length_settings, settings

GOAL = 0.1
CELLS = 64
"""Places in a sequence where a slice may end."""
BUCKETS = 400
"""The most bounds that the dynamic programme tries: a 400th of the largest slice apart."""


@dataclass(frozen=True)
class Cut:
    """The cut of a step: the number of sequences computed at once, and the tokens of each slice."""

    sequences: int
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Ours:
    """A setting by one of our programs: seconds of a step, and sequences' activations that the fullest rank holds."""

    program: str
    seconds: float
    held: float


PROGRAMS = {
    "gpipe": "TeraPipe's order",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved x 2",
    "zb_h1": "zero bubble H1",
    "zb_h2": "H2",
    "zb_v": "V",
    "v_half": "V half",
    "v_min": "V min",
}
"""Our names of schedules, and their names on the page."""
PARTS = {Kind.FORWARD: 1 / 3, Kind.BACKWARD: 2 / 3, Kind.INPUT_GRADIENT: 1 / 3, Kind.WEIGHT_GRADIENT: 1 / 3}
"""Shares of a slice's seconds, where dividing a backward costs nothing."""
REPLICAS_OF = {4: 5, 7: 8}
"""Settings with two replicas, and the setting of the same model and devices with one, whose stages have half as many blocks."""


def closed_seconds(setting: Setting, cut: Cut) -> float:
    """Return a step's seconds by TeraPipe's formula: a stage's own work, and the longest slice for each other stage."""
    seconds = [setting.slice_seconds(*one, cut.sequences) for one in placed(cut.lengths)]
    return setting.sequences // cut.sequences * sum(seconds) + (setting.stages - 1) * max(seconds) + setting.exchange_seconds


@cache
def best_cut(setting: Setting) -> Cut:
    """Return the dynamic programme's cut, also searched over the number of sequences computed at once."""
    step, found = setting.tokens // CELLS, []
    for sequences in (count for count in (1, 2, 4, 8) if setting.sequences % count == 0):
        table = slice_table(CELLS, lambda k, j, b=sequences: setting.slice_seconds(k * step, j * step, b))
        bucket = float(table[-1, 0]) / BUCKETS
        slicing = best_slices(table, setting.stages, setting.sequences // sequences, bucket)
        found.append(Cut(sequences, tuple(length * step for length in slicing.lengths)))
    return min(found, key=lambda cut: closed_seconds(setting, cut))


def whole(setting: Setting) -> Cut:
    return Cut(1, (setting.tokens,))


def table_rows() -> list[tuple[Row, Row]]:
    """Return the rows of the ten settings, without and with slices."""
    return [_both(setting) for setting in settings().values()]


def length_rows() -> list[tuple[Row, Row]]:
    """Return the rows of the 13B model by the length of a sequence."""
    return [_both(setting) for setting in length_settings().values()]


def ablation_rows(number: int) -> list[Row]:
    """Return the rows of a setting by the number of slices of equal length."""
    setting = settings()[number]
    return [
        Row(f"{slices} slice{'s' * (slices > 1)}", seconds, closed_seconds(setting, equal(setting, slices)), GOAL, "s")
        for slices, seconds in figures()["ablations"][number].items()
    ]


def equal(setting: Setting, slices: int) -> Cut:
    return Cut(1, (setting.tokens // slices,) * slices)


def sum_factors() -> dict[int, tuple[float, float]]:
    """Return, without and with slices, how many times as long as predicted the sum over replicas would have to take.

    Then a setting with replicas would be met as well as the one without them: by the formula both take nearly as long, but for
    the sum.
    """
    found = {}
    for number, alone in REPLICAS_OF.items():
        setting, factors = settings()[number], []
        for row, near in zip(_both(setting), _both(settings()[alone]), strict=True):
            work = (row.simulated - setting.exchange_seconds) * near.published / near.simulated
            factors.append((row.published - work) / setting.exchange_seconds)
        found[number] = (factors[0], factors[1])
    return found


def stages_of_a_rank(program: str) -> int:
    return 2 if program == "interleaved_1f1b" or is_folded(program) else 1


@cache
def our_runs(setting: Setting, cut: Cut, split_cost: float = 1.0) -> list[Ours]:
    """Simulate our programs over the same slices; those with two stages a rank only if a stage has blocks for two.

    split_cost: both parts of a divided backward over a whole one.
    """
    names = [name for name in PROGRAMS if setting.blocks % stages_of_a_rank(name) == 0]
    return [run(setting, cut, name, split_cost if schedule_named(name).splits else 1.0) for name in names]


@cache
def run(setting: Setting, cut: Cut, program: str, split_cost: float = 1.0) -> Ours:
    virtual = stages_of_a_rank(program)
    parts = PARTS | {kind: PARTS[kind] * split_cost for kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)}
    seconds = [setting.slice_seconds(*one, cut.sequences) / virtual for one in placed(cut.lengths)]
    shares = [cut.sequences * length / setting.tokens / virtual for length in cut.lengths]
    degrees = (setting.stages, virtual, setting.sequences // cut.sequences, len(cut.lengths))
    orders = _orders(program, *degrees)
    step = timed(orders, lambda _, operation: seconds[operation.slice] * parts[operation.kind])
    held = max(held_at_most(order, lambda operation: shares[operation.slice]) for order in orders)
    return Ours(program, max(one.end for one in step) + setting.exchange_seconds, held)


@cache
def _orders(program: str, stages: int, *degrees: int) -> list[list[Operation]]:
    return [schedule_named(program).operations(pp_rank, stages, *degrees) for pp_rank in range(stages)]


def _both(setting: Setting) -> tuple[Row, Row]:
    return (
        Row(setting.name, setting.whole, closed_seconds(setting, whole(setting)), GOAL, "s"),
        Row(setting.name, setting.sliced, closed_seconds(setting, best_cut(setting)), GOAL, "s"),
    )
