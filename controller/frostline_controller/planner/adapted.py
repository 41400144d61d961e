"""Adapters in unit costs that come from arithmetic: what learns of a block is narrow, and its own weights take no gradient."""

from frostline_contract.job import Job
from frostline_contract.job.adapters import blocks_with_adapters
from frostline_contract.statistics import UnitProfile

LINEAR_WIDTHS = 18
"""Input and output widths of a block's linear layers, added up, in hidden sizes: four square ones, and two of 1 to 4."""


def with_adapters(job: Job, hidden: int, units: tuple[UnitProfile, ...]) -> tuple[UnitProfile, ...]:
    """Unit costs of the job's model with its adapters; as they are where it has none.

    A target that is named counts as a square layer. A block hands gradients on for what its forward takes, and a unit before the
    first adapter has no backward.

    Raises ValueError for blocks that the model does not have.
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
