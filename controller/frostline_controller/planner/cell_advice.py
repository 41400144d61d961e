"""Advice on the grid: in how many cells of equal FLOPs each sequence is best computed.

The grid is numerics, fixed before the run, so nothing of a run chooses it: this is advice, to be written into the job by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frostline_contract.job import Job
from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.search import PlannedPlacement, make_plan
from frostline_controller.planner.shapes import ALL_DEGREES_UP_TO

LEAST_TOKENS = 16
"""Of a cell: shorter ones are calls more than work."""
WORTH = 1.02
"""How much faster a grid must be than a coarser one to be advised; predictions are no better."""


@dataclass(frozen=True)
class GridCandidate:
    """A number of cells. measured: whether its cells' seconds were; else they are a share of the whole and a call each."""

    cells: int
    planned: PlannedPlacement
    measured: bool


@dataclass(frozen=True)
class GridAdvice:
    """Attributes:
    best: cells of each sequence that are advised.
    candidates: by ascending cells.
    reason: for people.
    """

    best: int
    candidates: tuple[GridCandidate, ...]
    reason: str


def is_asked(job: Job, devices: int) -> bool:
    """Whether the job could compute cells, on so few devices that all grids are planned at once.

    Whether its family reads in order is known where it runs.
    """
    training = job.training
    return (
        devices <= ALL_DEGREES_UP_TO
        and job.task.kind == "language_modeling"
        and job.model.adapters is None
        and not training.compile
        and not training.loss_chunk_tokens
    )


def advise_cells(inputs: PlanInputs, tokens: int, call_seconds: float) -> GridAdvice:
    """The number of cells whose best plan has the least predicted step; of nearly equal ones the fewest.

    Args:
        inputs: as the job stands, with its own grid.
        tokens: of a sequence.
        call_seconds: what a unit's call costs however few tokens it is for; a forward and a backward of each cell take one.

    Raises:
        ValueError: nothing fits.
    """
    powers = [1 << power for power in range(tokens.bit_length()) if tokens >> power >= LEAST_TOKENS or power == 0]
    counts = sorted({*powers, inputs.token_cells})
    candidates = tuple(_candidate(inputs, count, call_seconds) for count in counts)
    least = min(_seconds(one) for one in candidates)
    best = next(one for one in candidates if _seconds(one) <= least * WORTH)
    whole, text = candidates[0], f"token_cells {best.cells}: predicted step {best.planned.cost.total_seconds:.4g} s"
    if best.cells > 1:
        text += f", {_seconds(whole) / _seconds(best):.2f}x faster than whole sequences"
    return GridAdvice(best.cells, candidates, text)


def in_cells(units: Sequence[UnitProfile], before: int, after: int, call_seconds: float) -> tuple[UnitProfile, ...]:
    """Units that compute `before` cells as if they computed `after`: so many calls more, or fewer; unit 0 computes no cells."""
    calls = (after - before) * call_seconds
    none = {"cell_forward_seconds": (), "cell_backward_seconds": ()}
    return (
        units[0],
        *(
            unit.model_copy(
                update={
                    **none,
                    "forward_seconds": max(call_seconds, unit.forward_seconds + calls),
                    "backward_seconds": max(call_seconds, unit.backward_seconds + calls),
                }
            )
            for unit in units[1:]
        ),
    )


def _candidate(inputs: PlanInputs, cells: int, call_seconds: float) -> GridCandidate:
    if cells == inputs.token_cells:
        measured = any(len(unit.cell_forward_seconds) == cells for unit in inputs.units)
        return GridCandidate(cells, make_plan(inputs), measured)
    units = in_cells(inputs.units, inputs.token_cells, cells, call_seconds)
    section = inputs.placement.model_copy(update={"slices": None})
    return GridCandidate(
        cells, make_plan(replace(inputs, units=units, token_cells=cells, cell_tokens=(), placement=section)), False
    )


def _seconds(candidate: GridCandidate) -> float:
    return candidate.planned.cost.seconds_per_sample
