"""A placement: who computes what in one generation. Immutable, and the same on both sides of the wire."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from frostline_contract.record import Degrees, Shaped
from frostline_contract.shape import ParallelShape


class Placement(Shaped):
    """Who computes what. Changes no bit of any result.

    degrees: the shape, its degrees by axis name.
    stage_bounds: num_stages + 1 unit indices; stage i holds units [stage_bounds[i], stage_bounds[i + 1]).
    workers: worker ids by global rank. leaf_bounds: dp_degree + 1 leaf indices; replica r computes leaves
    [leaf_bounds[r], leaf_bounds[r + 1]). schedule: a name of the schedule registry ("gpipe", "1f1b", "interleaved_1f1b").
    use_cache: whether workers read the frozen prefix's output from the activation cache. predicted_peak_bytes: the planner's,
    of the fullest worker; 0 for none.
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

    @cached_property
    def shape(self) -> ParallelShape:
        return ParallelShape.of(self.degrees, self.virtual_stages)

    def units_of_stage(self, stage: int) -> range:
        return range(self.stage_bounds[stage], self.stage_bounds[stage + 1])

    @cached_property
    def global_ranks(self) -> Mapping[str, int]:
        """Global rank by worker id: to ask for a member costs the same in any world."""
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
        """Whether `unit` is one of the member's own."""
        pp_rank = self._pp_rank_of_member.get(worker_id)
        return pp_rank is not None and self._pp_rank_of_unit.get(unit) == pp_rank

    def leaves_of(self, dp_rank: int) -> range:
        return range(self.leaf_bounds[dp_rank], self.leaf_bounds[dp_rank + 1])

    def owners(self, unit: int) -> list[str]:
        """The members that hold `unit`, by dp rank."""
        pp_rank = self._pp_rank_of_unit.get(unit)
        return list(self.members_by_pp_rank[pp_rank]) if pp_rank is not None else []
