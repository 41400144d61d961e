"""The cost of a backward in two separate parts: the gradient of a stage's input, and the gradients of its weights.

Both parts are measured unit by unit as shares of the whole backward (`UnitProfile.input_gradient_cost`); together they may take
longer than the whole. Where nothing was measured, each part counts as half of the whole.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from frostline_contract.schedules import schedule_named
from frostline_controller.planner.inputs import PlanInputs

if TYPE_CHECKING:
    from frostline_controller.planner.cost import CostModel

HALF = 0.5


class SplitSeconds(NamedTuple):
    """Seconds of the two parts of a split backward: arrays with a row for each stage and a column for each slice.

    Attributes:
        input: seconds of the gradient of the input, sending included.
        weights: seconds of the gradients of weights.
    """

    input: np.ndarray
    weights: np.ndarray


def are_measured(inputs: PlanInputs) -> bool:
    """Whether the costs of both parts were measured for every unit with a backward to split; unit 0 has no input."""
    splitting = inputs.units[max(1, inputs.freeze_point) :]
    return all(unit.input_gradient_cost > 0 and unit.weight_gradient_cost > 0 for unit in splitting)


def first_learning(inputs: PlanInputs, stage_bounds: np.ndarray) -> int:
    """Return the first stage with a unit that learns; its backwards are not split, since no stage needs its input's gradient."""
    return int(np.searchsorted(stage_bounds[1:], inputs.freeze_point, side="right"))


def split_seconds(
    model: "CostModel", low: np.ndarray, high: np.ndarray, slices: tuple[int, ...], backward: np.ndarray, speed: float
) -> SplitSeconds:
    """Return the seconds of both parts in the stages [low, high).

    Args:
        model: the cost model.
        low, high: first unit of each stage, and the first one after it.
        slices: cells of each slice; () stands for a single slice.
        backward: seconds of each slice's whole backward, sending included, a row a stage.
        speed: of the stages' workers, relative to the profile's.
    """
    whole, into, weights = (_of_stages(model, costs, low, high, slices) / speed for costs in (None, *_costs(model.inputs)))
    return SplitSeconds(backward - whole + into, weights)


def split_price(model: "CostModel", stage_bounds: np.ndarray, schedule: str) -> np.ndarray:
    """Return by stage the seconds of a micro-batch that both parts take beyond a whole backward; 0 without splitting."""
    low, high = stage_bounds[:-1], stage_bounds[1:]
    if not schedule_named(schedule).splits:
        return np.zeros(len(low))
    whole, into, weights = (_of_stages(model, costs, low, high, ()).sum(axis=1) for costs in (None, *_costs(model.inputs)))
    return np.where(np.arange(len(low)) > first_learning(model.inputs, stage_bounds), into + weights - whole, 0.0)


def _costs(inputs: PlanInputs) -> tuple[np.ndarray, np.ndarray]:
    """Return the costs of the two parts by unit, as shares of the unit's whole backward."""
    given = [(unit.input_gradient_cost, unit.weight_gradient_cost) for unit in inputs.units]
    into, weights = (np.array([one[part] for one in given]) for part in (0, 1))
    known = (into > 0) & (weights > 0)
    return np.where(known, into, HALF), np.where(known, weights, HALF)


def _of_stages(
    model: "CostModel", costs: np.ndarray | None, low: np.ndarray, high: np.ndarray, slices: tuple[int, ...]
) -> np.ndarray:
    """Return the seconds of the stages' backwards by slice, each unit's times its cost; sends are not included.

    Args:
        model: the cost model.
        costs: a factor for each unit; None: 1.
        low, high: first unit of each stage, and the first one after it.
        slices: cells of each slice; () for a single slice.

    Returns:
        An array with a row for each stage and a column for each slice.
    """
    cells = slices or (model.inputs.token_cells,)
    edges = np.concatenate([[0], np.cumsum(cells)])[:-1]
    by_cell, whole = np.diff(model.cells.backward, axis=1), np.diff(model.backward)
    by_cell, beside = (table if costs is None else table * costs for table in (by_cell, whole - by_cell.sum(axis=0)))
    sums, rest = (
        np.concatenate([np.zeros((*table.shape[:-1], 1)), table.cumsum(axis=-1)], axis=-1) for table in (by_cell, beside)
    )
    grouped = np.add.reduceat(sums[:, high] - sums[:, low], edges, axis=0).T
    grouped[:, 0] += rest[high] - rest[low]  # units that compute whole sequences do so with the first slice
    return grouped
