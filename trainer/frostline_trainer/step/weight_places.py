"""Where one member's weights are in a generation: in modules, in local shards, or as the tiles that it computes."""

from collections.abc import Sequence

from torch import nn

from frostline_contract.plan import Plan
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.in_group import InGroup
from frostline_trainer.step.local_shards import join_unit, shard_unit
from frostline_trainer.step.still_tiles import hold_still_tiles
from frostline_trainer.step.tile_state import keep_tiles
from frostline_trainer.tensor.tiles import Tiles

Units = Sequence[tuple[int, nn.Module]]


class WeightPlaces:
    """The places of a member's weights.

    Args:
        context: the run's.
        plan: of the generation.
        worker_id: the member's.
        in_group: says which tiles the member computes.
    """

    def __init__(self, context: RunContext, plan: Plan, worker_id: str, in_group: InGroup) -> None:
        self._context, self._plan, self._worker_id, self._in_group = context, plan, worker_id, in_group
        self._needed = plan.needs(worker_id)
        self._placement = plan.placement

    def settle(self, freeze_point: int, own: Units) -> None:
        """Bring weights to their places before a step at this freeze point. own: (number, unit) of the member's stages."""
        table, units = self._plan.pieces, self._context.cut.units
        here = self._context.holdings.all().keys() | set(self._needed)  # pieces whose state this member has or is to have
        for unit in sorted({*table.units_of(self._needed), *(unit for unit, _ in own)}):
            module, gathers = units[unit], self._placement.gathers_at_use and unit >= freeze_point
            if table.state_tiles > 1:
                tiles = self._tiles_in(unit, freeze_point)
                join_unit(module, table)
                keep_tiles(module, table, unit, tiles, here)
                if tiles is not None:
                    hold_still_tiles(module, tiles)
            if gathers:
                shard_unit(module, table, here & set(table.of_unit(unit)))
            else:
                join_unit(module, table)

    def _tiles_in(self, unit: int, freeze_point: int) -> Tiles | None:
        """The tiles that a unit's module is to hold: those that the member computes, which are all of a frozen unit.

        None: of a unit of which the member has only pieces for others.
        """
        if not self._placement.divides_tiles:
            return self._in_group.whole
        if not self._placement.holds(self._worker_id, unit):
            return None
        return self._in_group.own if unit >= freeze_point else self._in_group.whole
