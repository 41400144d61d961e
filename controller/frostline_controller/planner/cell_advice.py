"""Advice on the grid: the best number of cells of equal FLOPs for each sequence, together with the best micro-batch size.

Both are searched as pairs: fewer micro-batches of more samples in more cells can beat more micro-batches in fewer cells with as
many tokens in each. They are a part of the numerics and fixed before the run, so a run never chooses the grid; a user writes the
advised numbers into the job.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from frostline_contract.job import Job
from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import least_seconds, make_plan
from frostline_controller.planner.shapes import ALL_DEGREES_UP_TO

LEAST_TOKENS = 16
"""Least tokens of a cell; the time of shorter cells is mostly the overhead of calls."""
WORTH = 1.02
"""Least speed-up of a finer grid over a coarser one to be advised; predictions are no more accurate."""
OTHER_PAIRS = 6
"""Most pairs with another micro-batch size than the job's that are planned."""


@dataclass(frozen=True)
class GridCandidate:
    """A micro-batch size and a number of cells, with their plan.

    Attributes:
        micro_batch_size: samples of a micro-batch.
        cells: of each sequence.
        planned: the best plan with both.
        measured: whether the cells' seconds were measured; else each is a share of the whole sequence's and one call.
    """

    micro_batch_size: int
    cells: int
    planned: PlannedPlacement
    measured: bool

    @property
    def pair(self) -> tuple[int, int]:
        """(samples of a micro-batch, cells of a sequence)."""
        return self.micro_batch_size, self.cells


@dataclass(frozen=True)
class GridAdvice:
    """The pair that the planner advises, with the pairs from which it was chosen.

    Attributes:
        best: the advised pair.
        now: the job's own pair.
        candidates: by ascending cells, then by ascending size; with the job's own size all grids.
        reason: for people.
    """

    best: GridCandidate
    now: GridCandidate
    candidates: tuple[GridCandidate, ...]
    reason: str

    @property
    def rows(self) -> list[GridCandidate]:
        """The fastest candidate of each number of cells, and the job's own."""
        fastest = {one.cells: one for one in sorted(self.candidates, key=_seconds, reverse=True)}
        return [one for one in self.candidates if one is fastest[one.cells] or one is self.now]

    @property
    def changed(self) -> dict[str, int]:
        """The fields of `training` that the advice changes, with their values; empty where the job has the pair already."""
        values = {"micro_batch_size": self.best.micro_batch_size, "token_cells": self.best.cells}
        return {name: value for (name, value), own in zip(values.items(), self.now.pair, strict=True) if value != own}


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


def advise_cells(inputs: PlanInputs, tokens: int, call_seconds: float, others: Sequence[PlanInputs] = ()) -> GridAdvice:
    """Return the micro-batch size and the number of cells whose best plan has the least predicted step.

    Of nearly equal pairs that with the fewest cells is taken, then that with the job's size. With the job's size all grids are
    planned; with other sizes those pairs whose lower bound may still win, least bound first, at most OTHER_PAIRS.

    Args:
        inputs: the planner's inputs for the job as it is, with its own grid.
        tokens: of a sequence.
        call_seconds: fixed time of a unit's call, whatever its tokens; each cell takes one call forward and one backward.
        others: the planner's inputs at other micro-batch sizes, with the job's grid.

    Raises:
        ValueError: nothing fits at the job's size.
    """
    powers = [1 << power for power in range(tokens.bit_length()) if tokens >> power >= LEAST_TOKENS or power == 0]
    counts = sorted({*powers, inputs.token_cells})
    own = [with_cells(inputs, count, call_seconds) for count in counts]
    candidates = [_candidate(one, any(len(unit.cell_forward_seconds) == one.token_cells for unit in one.units)) for one in own]
    now = candidates[counts.index(inputs.token_cells)]
    pairs = [pair for other in others for pair in _promising(other, counts, call_seconds)]
    best = _choice(candidates, inputs.micro_batch_size)
    for bound, place in sorted((least_seconds(pair), place) for place, pair in enumerate(pairs)):
        if len(candidates) - len(counts) == OTHER_PAIRS:
            break
        # Groups may take less than the bound of workers by themselves, so with them the number alone is the limit.
        needed = bound * (WORTH if pairs[place].token_cells >= best.cells else 1)
        if needed <= min(map(_seconds, candidates)) or inputs.is_to_be_shared:
            with suppress(NothingFits):
                candidates.append(_candidate(pairs[place], is_measured=False))
                best = _choice(candidates, inputs.micro_batch_size)
    text = f"micro_batch_size {best.micro_batch_size} with token_cells {best.cells}: predicted step "
    text += f"{best.planned.cost.total_seconds:.4g} s"
    if best is not now:
        text += f", {_seconds(now) / _seconds(best):.2f}x faster than {now.micro_batch_size} with {now.cells}"
    return GridAdvice(best, now, tuple(sorted(candidates, key=lambda one: (one.cells, one.micro_batch_size))), text)


def with_cells(inputs: PlanInputs, cells: int, call_seconds: float) -> PlanInputs:
    """Return the planner's inputs with another number of cells; with their own they stay as they are."""
    if cells == inputs.token_cells:
        return inputs
    units = in_cells(inputs.units, inputs.token_cells, cells, call_seconds)
    section = inputs.placement.model_copy(update={"slices": None})
    may_gather = cells == 1 and (inputs.may_gather or inputs.token_cells > 1)
    return replace(inputs, units=units, token_cells=cells, cell_tokens=(), placement=section, may_gather=may_gather)


def _promising(inputs: PlanInputs, counts: Sequence[int], call_seconds: float) -> list[PlanInputs]:
    """Return the inputs with each grid whose lower bound is a worthwhile part less than that of every coarser one."""
    found, least = list[PlanInputs](), float("inf")
    for count in counts:
        pair = with_cells(inputs, count, call_seconds)
        if (bound := least_seconds(pair)) * WORTH < least:
            found.append(pair)
            least = bound
    return found


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


def _candidate(inputs: PlanInputs, is_measured: bool) -> GridCandidate:
    return GridCandidate(inputs.micro_batch_size, inputs.token_cells, make_plan(inputs), is_measured)


def _choice(candidates: Sequence[GridCandidate], own_size: int) -> GridCandidate:
    """Return the candidate to be advised: see `advise_cells`."""
    least = min(map(_seconds, candidates))
    near = [one for one in candidates if _seconds(one) <= least * WORTH]
    return min(near, key=lambda one: (one.cells, one.micro_batch_size != own_size, _seconds(one)))


def _seconds(candidate: GridCandidate) -> float:
    return candidate.planned.cost.seconds_per_sample
