"""Gathers units' weights at each use and frees them afterwards (`placement.shard: use`, ZeRO-3 or FSDP).

At most one unit is gathered at any time: it is freed when another one is used, so that uses of one unit right behind each other
share a gather. Since all replicas of a line use the same units in the same order, all call the same gathers.
"""

from collections.abc import Mapping

from torch import nn

from frostline_trainer.step.local_shards import free_module
from frostline_trainer.step.sharing import Sharing


class Gathering:
    """One member's gathers at one freeze point.

    Args:
        sharing: of the member's stages.
        units: those of its stages that learn, by number; their state is in local shards.

    Attributes:
        most_bytes: of the largest unit that was gathered.
    """

    def __init__(self, sharing: Sharing, units: Mapping[int, nn.Module]) -> None:
        self._sharing, self._units = sharing, units
        self._gathered: int | None = None
        self.most_bytes = 0

    def use(self, unit: int) -> None:
        """Gather a unit, unless it is the one that was used last. Collective over the replicas."""
        if unit == self._gathered:
            return
        self.free()
        self._gathered = unit  # before the gather: one that fails has filled the module
        self.most_bytes = max(self.most_bytes, self._sharing.unshard(unit, self._units[unit]))

    def free(self) -> None:
        """Free the gathered unit."""
        if self._gathered is not None:
            free_module(self._units[self._gathered])
            self._gathered = None
