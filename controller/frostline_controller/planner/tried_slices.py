"""The slices that the search tries: their number, and the cells of each."""

from functools import lru_cache

import numpy as np

from frostline_controller.planner.cost import CostModel, even_slices
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.token_slices import best_slices, measured_table

BUCKETS = 200
"""Most bounds that the dynamic programme tries."""


def slice_counts(inputs: PlanInputs, pp_degree: int) -> list[int]:
    """Return the numbers of slices to try: placement.slices where set; else powers of two up to the cells, and the cells."""
    cells = inputs.token_cells
    if pp_degree == 1 or cells == 1:
        return [1]
    if inputs.placement.slices is not None:
        return [min(inputs.placement.slices, cells)]
    return sorted({cells, *(1 << power for power in range(cells.bit_length()))})


def groupings_of(model: CostModel, pp_degree: int, virtual: int, micro_batches: int, count: int) -> list[tuple[int, ...]]:
    """Return groupings into `count` slices: the even one, and the dynamic programme's where its number of slices is nearest.

    Args:
        model: the cost model.
        virtual: stages of each pipeline rank.
        micro_batches: of a replica.
        count: number of slices.

    Returns:
        The cells of each slice, for each grouping; () for a single slice.
    """
    if count == 1:
        return [()]
    inputs = model.inputs
    even = even_slices(inputs, pp_degree, "1f1b", count)
    if inputs.placement.slices is not None:
        return [even]
    best = _programme(model, pp_degree, virtual, micro_batches)
    nearest = min(slice_counts(inputs, pp_degree), key=lambda tried: (abs(tried - max(1, len(best))), tried))
    return [even, best] if len(best) > 1 and nearest == count and best != even else [even]


@lru_cache(maxsize=1024)
def _programme(model: CostModel, pp_degree: int, virtual: int, micro_batches: int) -> tuple[int, ...]:
    """Return the slices of the dynamic programme, for stages with an even share of the model."""
    inputs = model.inputs
    seconds = (model.cells.forward[:, -1] + model.cells.backward[:, -1]) / (pp_degree * virtual)
    share = np.array(inputs.share_of_slices((1,) * inputs.token_cells))
    sends = 2 * max(0.0, model.least_send_seconds - model.pipeline_link.latency_seconds)
    message = 2 * model.pipeline_link.latency_seconds
    table = measured_table((seconds + sends * share).tolist(), message)
    bucket = float(table[-1, 0]) / BUCKETS if inputs.token_cells > 12 else 0.0
    return best_slices(table, pp_degree * virtual, max(1, micro_batches * virtual), bucket).lengths
