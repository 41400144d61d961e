"""Predictions of the published rows, and of our programs over the same slices."""

from dataclasses import dataclass
from functools import cache

from frostline_contract.operations import Kind
from frostline_contract.schedule_figures import held_at_most, timed
from frostline_contract.schedules import schedule_named
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
    "zb_h1": "zero bubble H1",
    "zb_h2": "zero bubble H2",
    "interleaved_1f1b": "interleaved x 2",
}
"""Our names of schedules, and their names on the page."""
PARTS = {Kind.FORWARD: 1 / 3, Kind.BACKWARD: 2 / 3, Kind.INPUT_GRADIENT: 1 / 3, Kind.WEIGHT_GRADIENT: 1 / 3}
"""Shares of a slice's seconds."""


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


@cache
def our_runs(setting: Setting, cut: Cut) -> list[Ours]:
    """Simulate our programs over the same slices; interleaved ones only if a stage has blocks for two."""
    return [run(setting, cut, name) for name in PROGRAMS if name != "interleaved_1f1b" or setting.blocks % 2 == 0]


@cache
def run(setting: Setting, cut: Cut, program: str) -> Ours:
    virtual = 2 if program == "interleaved_1f1b" else 1
    seconds = [setting.slice_seconds(*one, cut.sequences) / virtual for one in placed(cut.lengths)]
    shares = [cut.sequences * length / setting.tokens / virtual for length in cut.lengths]
    degrees = (setting.stages, virtual, setting.sequences // cut.sequences, len(cut.lengths))
    orders = [schedule_named(program).operations(pp_rank, *degrees) for pp_rank in range(setting.stages)]
    step = timed(orders, lambda _, operation: seconds[operation.slice] * PARTS[operation.kind])
    held = max(held_at_most(order, lambda operation: shares[operation.slice]) for order in orders)
    return Ours(program, max(one.end for one in step) + setting.exchange_seconds, held)


def _both(setting: Setting) -> tuple[Row, Row]:
    return (
        Row(setting.name, setting.whole, closed_seconds(setting, whole(setting)), GOAL, "s"),
        Row(setting.name, setting.sliced, closed_seconds(setting, best_cut(setting)), GOAL, "s"),
    )
