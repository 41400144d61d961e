"""Advice on the grid: the best number of cells of equal FLOPs for each sequence.

The grid is a part of the numerics and fixed before the run, so a run never chooses it; a user writes the advised number into the
job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frostline_contract.job import Job
from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shapes import ALL_DEGREES_UP_TO

LEAST_TOKENS = 16
"""Least tokens of a cell; the time of shorter cells is mostly the overhead of calls."""
WORTH = 1.02
"""Least speed-up of a finer grid over a coarser one to be advised; predictions are no more accurate."""


@dataclass(frozen=True)
class GridCandidate:
    """A number of cells with its plan.

    Attributes:
        cells: of each sequence.
        planned: the best plan with so many cells.
        measured: whether the cells' seconds were measured; else each is a share of the whole sequence's and one call.
    """

    cells: int
    planned: PlannedPlacement
    measured: bool


@dataclass(frozen=True)
class GridAdvice:
    """The number of cells that the planner advises, with the grids from which it was chosen.

    Attributes:
        best: the advised cells of each sequence.
        candidates: by ascending cells.
        reason: for people.
    """

    best: int
    candidates: tuple[GridCandidate, ...]
    reason: str


def is_asked(job: Job, devices: int) -> bool:
    """Whether the job could compute cells, and on so few devices that all grids can be planned.

    Cells also need a causal model family, which is checked only where the job runs.
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
    """Return the number of cells whose best plan has the least predicted step; of nearly equal numbers the fewest.

    Args:
        inputs: the planner's inputs for the job as it is, with its own grid.
        tokens: of a sequence.
        call_seconds: fixed time of a unit's call, whatever its tokens; each cell takes one call forward and one backward.

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
    """Return the costs of units with `before` cells as if with `after`, by the calls more or fewer; unit 0 computes no cells."""
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
