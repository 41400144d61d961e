"""Analytic unit costs of a model with adapters: a block's adapters learn, and the block's own weights take no gradient."""

from frostline_contract.job import Job
from frostline_contract.job.adapters import blocks_with_adapters
from frostline_contract.statistics import UnitProfile

LINEAR_WIDTHS = 18
"""Sum of the input and output widths of a block's linear layers, in hidden sizes: four square layers, and two of 1 to 4."""


def with_adapters(job: Job, hidden: int, units: tuple[UnitProfile, ...]) -> tuple[UnitProfile, ...]:
    """Return the unit costs of the job's model with its adapters; unchanged where the job has no adapters.

    A target layer that the job names counts as a square layer. The backward of a block takes as long as its forward, since only
    gradients of activations pass through it; a unit before the first adapter has no backward.

    Raises:
        ValueError: the adapters name blocks that the model does not have.
    """
    adapters = job.model.adapters
    if adapters is None:
        return units
    lowest = job.lowest_freeze_point(len(units))
    widths = (2 * len(adapters.targets) or LINEAR_WIDTHS) * hidden
    blocks = set(blocks_with_adapters(adapters, len(units) - 2))
    found = list(units)
    for index, unit in enumerate(units[:-1]):
        weight_bytes = unit.parameter_bytes / (12 * hidden**2 + 13 * hidden)
        learning = round(adapters.rank * widths * weight_bytes) if index - 1 in blocks else 0
        found[index] = unit.model_copy(update={
            "backward_seconds": unit.forward_seconds if index >= lowest else 0.0,
            "parameter_bytes": unit.parameter_bytes + learning,
            "optimizer_bytes": learning * unit.optimizer_bytes // unit.parameter_bytes,
            "still_bytes": unit.parameter_bytes,
        })  # fmt: skip
    return tuple(found)
