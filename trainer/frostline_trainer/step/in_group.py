"""A member's duties in its tensor-parallel group, whose members share their stages tile by tile (docs/protocols.md 1.25)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from frostline_contract.plan import Plan
from frostline_contract.shape import tiles_problem
from frostline_trainer.generations.groups import Groups
from frostline_trainer.prefix.dealing import DealtPrefix, all_have
from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.still_tiles import still_tiles_of_another
from frostline_trainer.step.tile_state import exchanged_tiles
from frostline_trainer.tensor.group import hidden_in, rows_in, tiles_in
from frostline_trainer.tensor.install import share_tiles
from frostline_trainer.tensor.rows import row_tiles
from frostline_trainer.tensor.tiles import Tiles

Prefix = PrefixReader | DealtPrefix


class InGroup:
    """One member's duties in one generation; next to none without a tensor-parallel group.

    Args:
        context: the run's.
        plan: of the generation.
        index: own global rank.
        groups: of the generation.

    Attributes:
        speaks: whether this member reports the figures that all of its group have alike: losses, scores, counts.
    """

    def __init__(self, context: RunContext, plan: Plan, index: int, groups: Groups) -> None:
        shape = self._shape = plan.placement.shape
        grid = context.job.training.tensor_tiles.grid
        assert not (problem := tiles_problem(shape, grid)), problem
        self._context, self._groups, self.speaks = context, groups, shape.tp_rank(index) == 0
        self._group = groups.tensor
        self._whole = context.tiles if grid.size > 1 else None
        self._splits_rows = plan.placement.splits_rows
        self._own = self._tiles_ahead(0) if self._group is not None else self._whole
        self._is_dealt: bool | None = None

    def share_tiles(self, learning: Iterable[nn.Module]) -> None:
        """Let units that learn compute this member's tiles only, and frozen units all tiles; does nothing without tiles.

        Frozen units compute all tiles because some members of a group may hit the cache where others have to compute.
        """
        if self._own is None or self._whole is None:
            return
        shared = {id(unit) for unit in learning}
        for unit in self._context.cut.units:
            share_tiles(unit, self._own if id(unit) in shared else self._whole)

    @property
    def whole(self) -> Tiles:
        """All tiles of the run."""
        assert self._whole is not None, "blocks are not in tiles"
        return self._whole

    @property
    def own(self) -> Tiles:
        """The tiles that this member computes."""
        assert self._own is not None, "blocks are not in tiles"
        return self._own

    @contextmanager
    def in_place_of(self, place: int, units: Sequence[nn.Module]) -> Iterator[None]:
        """Let units compute for a while what a member of this group, or of another replica's, computes in the step (audits).

        In a group this is collective: all members compute as the ones equally many places on, with those members' weights. A
        member that computes alone has all tiles. Without tiles nothing changes. Afterwards the caller shares the tiles out again.

        Args:
            place: of the other member in its group.
            units: those of a stage.
        """
        group = self._group
        if self._whole is None:
            yield
        elif group is None:
            for unit in units:
                share_tiles(unit, self._whole)
            yield
        else:
            ahead = (place - group.index) % group.size
            tiles = self._tiles_ahead(ahead)
            with exchanged_tiles(group, units, tiles, ahead), still_tiles_of_another(units, tiles):
                for unit in units:
                    if row_tiles(unit).are_divided:
                        share_tiles(unit, tiles)
                yield

    def _tiles_ahead(self, ahead: int) -> Tiles:
        """The tiles of the member so many places on in the group: some columns, or, in a group of one column, some levels."""
        group, whole, shape = self._group, self.whole, self._shape
        assert group is not None
        columns, levels = divmod(ahead, shape.tp_depth)
        assert shape.tp_columns == 1 or levels == 0, f"{ahead} places on, a line of columns is not one in {shape.degrees}"
        rows = rows_in(group, whole.rows.total, ahead) if self._splits_rows else whole.rows
        hidden = hidden_in(self._groups.levels, whole.hidden.total, levels)
        return tiles_in(self._groups.columns, whole.total, rows, columns, hidden)

    def begin(self) -> None:
        """Forget the agreement on how the prefix is read; called at each freeze point."""
        self._is_dealt = None

    def dealt(self, prefix: Prefix | None, micro_batches: int) -> Prefix | None:
        """The reader of the frozen prefix for a step. Collective on the first call after `begin`.

        If all members of a group have a reader, and there are enough micro-batches to give each member one at least, the group
        distributes the micro-batches: each member reads some and sends them to the others.

        Args:
            prefix: this member's own reader; None if it reads no cache.
            micro_batches: number of the replica's micro-batches.
        """
        if self._is_dealt is None:
            group = self._group
            self._is_dealt = group is not None and micro_batches >= group.size and all_have(group, prefix, self._context.device)
            if self._is_dealt:
                assert group is not None and isinstance(prefix, PrefixReader)
                return DealtPrefix(prefix, group, self._context.micro_batch_size)
        return prefix

    @property
    def counts_reads(self) -> bool:
        """Whether this member's cache reads are counted: if the group does not distribute them, only one member's are."""
        return self.speaks or bool(self._is_dealt)
