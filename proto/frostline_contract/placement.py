"""The record of a placement: who computes what. Immutable, the same on both sides of the wire.

The field names are those of frostline_proto/v1/plan.proto, so that one converter serves them all (frostline_rpc.convert).
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from frostline_contract.pieces import Pieces
from frostline_contract.record import Degrees, Shaped
from frostline_contract.schedules import is_folded
from frostline_contract.shape import ParallelShape
from frostline_contract.sharding import NONE, USE, Shard
from frostline_contract.tensor_rows import SPLIT, WHOLE, TensorRows


class Placement(Shaped):
    """The assignment of stages and leaves to workers. It changes no bit of any result.

    Attributes:
        degrees: the shape, by axis name.
        stage_bounds: num_stages + 1 unit indices; stage i holds units [stage_bounds[i], stage_bounds[i + 1]).
        workers: worker ids by global rank.
        leaf_bounds: dp_degree + 1 leaf indices; replica r computes leaves [leaf_bounds[r], leaf_bounds[r + 1]).
        schedule: a name of the registry.
        use_cache: whether workers read the frozen prefix's output from the cache.
        predicted_peak_bytes: memory of the fullest worker; 0: not predicted.
        slices: token cells in each slice; () for one slice.
        shard: how replicas share out the state of their stages (`frostline_contract.sharding`).
        tensor_rows: how groups have samples outside of tiled layers (`frostline_contract.tensor_rows`).
    """

    degrees: Degrees
    virtual_stages: int = 1
    stage_bounds: tuple[int, ...]
    leaf_bounds: tuple[int, ...]
    workers: tuple[str, ...]
    schedule: str = "1f1b"
    use_cache: bool = False
    predicted_step_seconds: float = 0.0
    predicted_peak_bytes: int = 0
    slices: tuple[int, ...] = ()
    shard: Shard = NONE
    tensor_rows: TensorRows = WHOLE

    @cached_property
    def shape(self) -> ParallelShape:
        """The degrees with the stages that each pipeline rank has."""
        return ParallelShape.of(self.degrees, self.virtual_stages, is_folded(self.schedule))

    def units_of_stage(self, stage: int) -> range:
        """The consecutive units of a stage, by stage number."""
        return range(self.stage_bounds[stage], self.stage_bounds[stage + 1])

    @cached_property
    def global_ranks(self) -> Mapping[str, int]:
        """Global rank by worker id, as a table, so that a lookup takes constant time."""
        return {worker: global_rank for global_rank, worker in reversed(list(enumerate(self.workers)))}

    @cached_property
    def units_by_pp_rank(self) -> tuple[tuple[int, ...], ...]:
        """The units of each pipeline rank, in order; every replica's are the same."""
        return tuple(
            tuple(unit for stage in self.shape.stages_of(pp_rank) for unit in self.units_of_stage(stage))
            for pp_rank in range(self.pp_degree)
        )

    @cached_property
    def members_by_pp_rank(self) -> tuple[tuple[str, ...], ...]:
        """The members of each pipeline rank, by global rank: all hold the same units."""
        return tuple(self.members_at(self.shape.owners_of(pp_rank)) for pp_rank in range(self.pp_degree))

    def members_at(self, global_ranks: Iterable[int]) -> tuple[str, ...]:
        """The members that have these global ranks, in the order given."""
        return tuple(self.workers[global_rank] for global_rank in global_ranks)

    @cached_property
    def _pp_rank_of_member(self) -> Mapping[str, int]:
        return {worker: pp_rank for pp_rank, members in enumerate(self.members_by_pp_rank) for worker in members}

    @cached_property
    def _pp_rank_of_unit(self) -> Mapping[int, int]:
        return {unit: pp_rank for pp_rank, units in enumerate(self.units_by_pp_rank) for unit in units}

    def units_of(self, worker_id: str) -> list[int]:
        """The units that a member holds, in order; empty for anybody else."""
        pp_rank = self._pp_rank_of_member.get(worker_id)
        return list(self.units_by_pp_rank[pp_rank]) if pp_rank is not None else []

    def holds(self, worker_id: str, unit: int) -> bool:
        """Whether the member's stages contain `unit`."""
        pp_rank = self._pp_rank_of_member.get(worker_id)
        return pp_rank is not None and self._pp_rank_of_unit.get(unit) == pp_rank

    @property
    def is_sharded(self) -> bool:
        """Whether the state of a stage is divided among its replicas, so that the owners of a piece are in one replica."""
        return self.shard != NONE and self.dp_degree > 1

    @property
    def splits_rows(self) -> bool:
        """Whether the members of a group have different samples outside of tiled layers."""
        return self.tensor_rows == SPLIT and self.shape.tp_degree > 1

    @property
    def divides(self) -> bool:
        """Whether pieces of a stage have different owners: its replicas share out its state, or groups its tiles."""
        return self.is_sharded or self.divides_tiles

    @property
    def divides_tiles(self) -> bool:
        """Whether members of a group own the pieces of the tiles that they compute, and no other tile's."""
        return self.shape.tp_degree > 1

    @property
    def gathers_at_use(self) -> bool:
        """Whether a unit that learns is whole only while it computes: its weights are gathered at each use."""
        return self.shard == USE and self.is_sharded

    @property
    def owners_each(self) -> int:
        """The most members that own a piece: those of one replica with sharded state, else those of all."""
        return self.shape.tp_degree * (1 if self.is_sharded else self.dp_degree)

    def leaves_of(self, dp_rank: int) -> range:
        """The consecutive leaves of the summation tree that a replica computes."""
        return range(self.leaf_bounds[dp_rank], self.leaf_bounds[dp_rank + 1])

    def owners(self, unit: int) -> list[str]:
        """The members that hold `unit`, by global rank."""
        pp_rank = self._pp_rank_of_unit.get(unit)
        return list(self.members_by_pp_rank[pp_rank]) if pp_rank is not None else []

    def owners_of(self, pieces: Pieces, piece: int) -> list[str]:
        """The members that own a piece, by global rank.

        These are all that hold its unit; of a tile's piece those of them that compute the tile; with sharded state those of them
        that are in the replica which owns the piece's range.
        """
        if not self.divides:
            return self.owners(pieces.unit_of(piece))
        pp_rank = self._pp_rank_of_unit.get(pieces.unit_of(piece))
        if pp_rank is None:
            return []
        tile, number = pieces.tile_of(piece), pieces.piece(piece).range
        ranks = self.shape.owners_of(pp_rank) if tile is None else self.shape.computers_of(pp_rank, tile, pieces.grid)
        if self.is_sharded:
            dp_rank = self.shape.dp_rank_of_share(pieces.ranges, number)
            ranks = tuple(global_rank for global_rank in ranks if self.shape.dp_rank(global_rank) == dp_rank)
        return list(self.members_at(ranks))

    def pieces_of(self, pieces: Pieces, worker_id: str) -> list[int]:
        """The pieces that a member owns, in order; empty for anybody else."""
        held = pieces.of_units(self.units_of(worker_id))
        return [piece for piece in held if worker_id in self.owners_of(pieces, piece)] if self.divides else held
