"""The best candidate by simulated steps, where micro-batches pass in slices of token cells, or a quota halts workers: there the
closed form is rough."""

from frostline_controller.planner.candidates import Candidate, price_of, seconds_of
from frostline_controller.planner.climbing import Cut, climb
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.shapes import schedules_for
from frostline_controller.planner.simulated_step import simulated_cost, turns_of

JUDGED = 12
"""Most candidates that are simulated."""
JUDGED_WITHIN = 1.5
"""Largest ratio of their closed form to the least one."""
IMPROVED_OPERATIONS = 60_000
"""Most operations that are simulated to improve a candidate."""


def best_simulated(model: CostModel, candidates: list[Candidate], best: Candidate) -> tuple[Candidate, str]:
    """Return the best by simulation of the JUDGED candidates with the least closed form, which can be off by a quarter.

    With cells, the best of each shape among them is improved by simulation (`planner.climbing`).
    """
    limit = seconds_of(model, best) * JUDGED_WITHIN
    near = [candidate for candidate in candidates if candidate.bound <= limit and seconds_of(model, candidate) <= limit]
    near = sorted(near, key=lambda c: (seconds_of(model, c), c.workers, c.pp, len(c.slices)))[:JUDGED]
    shapes = set[tuple[int, int, int]]()
    for candidate in sorted(near, key=lambda c: price_of(model, c, simulated_cost)):
        if (candidate.pp, candidate.dp, candidate.virtual) not in shapes:
            shapes.add((candidate.pp, candidate.dp, candidate.virtual))
            if model.inputs.token_cells > 1:
                _improve(model, candidate)
    place = min(range(len(near)), key=lambda place: (seconds_of(model, near[place]), place))
    return near[place], f", the best {len(near)} of which were simulated"


def _improve(model: CostModel, candidate: Candidate) -> None:
    """Move the candidate's bounds and regroup its cells as long as that is faster in simulation."""
    inputs = model.inputs
    operations = (
        2 * candidate.pp * candidate.virtual * candidate.table.costs.micro_batches * inputs.token_cells * turns_of(inputs)
    )
    if candidate.pp == 1:
        return
    schedule = candidate.table.costs.schedule

    def price(cut: Cut) -> float:
        allowed = schedules_for(inputs, candidate.pp, candidate.dp, max(1, len(cut[1])))
        if (schedule, candidate.virtual) not in allowed:
            return float("inf")
        candidate.bounds, candidate.slices = cut
        return price_of(model, candidate, simulated_cost)

    free = inputs.placement.slices is None and inputs.num_slices(candidate.pp, schedule) > 1
    found = climb(
        (candidate.bounds, candidate.slices),
        inputs.token_cells,
        inputs.first_cut,
        price,
        free,
        IMPROVED_OPERATIONS // operations,
    )
    price(found)
