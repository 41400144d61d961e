"""Seconds of slices of token cells in each stage, from the measured seconds of the cells.

Units from the freeze point on, but for unit 0, compute cell by cell. The frozen prefix and unit 0 compute whole sequences:
their forward before the forward of a micro-batch's first cell, their backward after its backward (docs/adr/0016).
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import PlanInputs

if TYPE_CHECKING:
    from frostline_controller.planner.cost import CostModel


class SliceSeconds(NamedTuple):
    """Seconds of a slice's forward and backward, sending included.

    Attributes:
        forward, backward: arrays with a row for each stage and a column for each slice.
    """

    forward: np.ndarray
    backward: np.ndarray


class CellCosts:
    """Prefix sums of each cell's seconds over the units: row c, column u is the time of the units [0, u) for cell c."""

    def __init__(self, inputs: PlanInputs) -> None:
        first = max(inputs.freeze_point, 1)
        shares = [[_shares(inputs, unit, name) for unit in inputs.units] for name in ("forward", "backward")]
        seconds = [[unit.forward_seconds for unit in inputs.units], [unit.backward_seconds for unit in inputs.units]]
        by_cell = [np.array(own).T * np.array(whole) for own, whole in zip(shares, seconds, strict=True)]
        for table in by_cell:
            table[:, :first] = 0.0
        self.forward, self.backward = (
            np.concatenate([np.zeros((len(table), 1)), table.cumsum(axis=1)], axis=1) for table in by_cell
        )

    def of_stages(
        self, model: "CostModel", low: np.ndarray, high: np.ndarray, slices: tuple[int, ...], speed: float
    ) -> SliceSeconds:
        """Return the seconds of slices in the stages [low, high), at `speed`.

        Args:
            model: the cost model with the stages' whole micro-batches and links.
            low, high: first unit of each stage, and the first one after it.
            slices: cells of each slice; () stands for one slice with all cells.
            speed: of the stages' workers, relative to the profile's.
        """
        inputs = model.inputs
        cells = slices or (inputs.token_cells,)
        edges = np.concatenate([[0], np.cumsum(cells)])
        found = []
        for table, sums in ((self.forward, model.compute - model.backward), (self.backward, model.backward)):
            stage = table[:, high] - table[:, low]
            grouped = np.add.reduceat(stage, edges[:-1], axis=0).T
            grouped[:, 0] += sums[high] - sums[low] - stage.sum(axis=0)
            found.append(grouped / speed)
        if len(low) > 1:
            shares = np.array(inputs.share_of_slices(cells))
            on, back = model.send_seconds[high], np.where(low > inputs.freeze_point, model.send_seconds[low], 0.0)
            for grouped, sent in zip(found, (on, back), strict=True):
                latency = np.where(sent > 0, model.pipeline_link.latency_seconds, 0.0)
                grouped += latency[:, None] + (sent - latency)[:, None] * shares
        return SliceSeconds(*found)


def _shares(inputs: PlanInputs, unit: UnitProfile, name: str) -> list[float]:
    """Return each cell's share of the unit's seconds: measured shares, or equal ones where the cells were not measured."""
    measured: tuple[float, ...] = getattr(unit, f"cell_{name}_seconds")
    if len(measured) != inputs.token_cells or sum(measured) <= 0:
        return [1 / inputs.token_cells] * inputs.token_cells
    return [seconds / sum(measured) for seconds in measured]


def beside_cells(inputs: PlanInputs) -> np.ndarray:
    """Return the bytes by unit that a micro-batch keeps whole until its first cell's backward: keys, values, unit 0's tensors."""
    learning = [index >= inputs.freeze_point for index in range(inputs.num_units)]
    kept = [2.0 * unit.output_bytes for unit in inputs.units[:-1]]
    kept[:1] = [float(inputs.units[0].activation_bytes)] if len(kept) > 0 else []
    return np.where(learning, np.array([*kept, 0.0]), 0.0)
