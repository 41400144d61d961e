"""Records of plans and placements: who computes what, and from which state. Immutable, the same on both sides of the wire.

The field names are those of frostline_proto/v1/plan.proto, so that one converter serves them all (frostline_rpc.convert).
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from frostline_contract.decision import Decision as Decision
from frostline_contract.older_plan import named_by_index
from frostline_contract.pieces import NOBODY as NOBODY
from frostline_contract.pieces import PieceHolders as PieceHolders
from frostline_contract.pieces import Pieces
from frostline_contract.record import Degrees, Frozen, Shaped
from frostline_contract.schedules import is_folded
from frostline_contract.shape import ParallelShape
from frostline_contract.sharding import NONE, USE, Shard
from frostline_contract.state_tag import GenerationId as GenerationId
from frostline_contract.state_tag import SeenVote as SeenVote
from frostline_contract.state_tag import StateTag as StateTag

FRESH, CONTINUE, CHECKPOINT, SURVIVORS = "fresh", "continue", "checkpoint", "survivors"

MICRO_BATCH, SAMPLE = "micro_batch", "sample"
PrefixTile = Literal["micro_batch", "sample"]
"""How many samples the frozen prefix computes together: a micro-batch, or one. Part of the numerics, constant over a run."""

GLOO, NCCL = "gloo", "nccl"
Backend = Literal["gloo", "nccl"]
"""What carries activations and gradients between members. Votes and states always travel over gloo."""


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

    def divides(self, pieces: Pieces) -> bool:
        """Whether pieces of a stage have different owners: its replicas share out its state, or groups its tiles."""
        return self.is_sharded or self.divides_tiles(pieces)

    def divides_tiles(self, pieces: Pieces) -> bool:
        """Whether members of a group own the pieces of the tiles that they compute, and no other tile's."""
        return pieces.state_tiles > 1 and self.shape.tp_degree > 1

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

        These are all that hold its unit; of a tile's piece those that compute the tile; with sharded state those of one replica.
        """
        pp_rank = self._pp_rank_of_unit.get(unit := pieces.unit_of(piece))
        if (tile := pieces.tile_of(piece)) is not None and pp_rank is not None:
            return list(self.members_at(self.shape.computers_of(pp_rank, tile, pieces.state_tiles)))
        if not self.is_sharded or pp_rank is None:
            return self.owners(unit)
        dp_rank = self.shape.dp_rank_of_share(pieces.ranges, pieces.piece(piece).range)
        return list(self.members_at(self.shape.group_at(dp_rank, pp_rank)))

    def pieces_of(self, pieces: Pieces, worker_id: str) -> list[int]:
        """The pieces that a member owns, in order; empty for anybody else."""
        held = pieces.of_units(self.units_of(worker_id))
        return [piece for piece in held if worker_id in self.owners_of(pieces, piece)] if self.divides(pieces) else held


class Plan(Frozen):
    """A plan: the placement of one generation, the numerics in force at its start, and where each piece's state comes from.

    The placement assigns units to workers; state is named by pieces (`frostline_contract.pieces`), whose table is `pieces`. Steps
    are committed steps, counted from 1.

    Attributes:
        generation: the generation that the plan starts.
        base: the generation whose members or state the plan continues; None where it continues none.
        lineage: the lineage of the plan's steps.
        start: "fresh" (the model's initial weights), "continue" (from the members of `base`, at the switch), "checkpoint", or
            "survivors" (from the state that is left of `base` after a failure).
        start_step: the last step that the state includes (0 for fresh); -1 for "continue", where it is the step of the switching
            vote, not yet known when the plan is written.
        checkpoint_path: for "checkpoint", the manifest's folder relative to the checkpoint root.
        freeze_point: index of the first unit that learns at the start.
        decision_number: the decision that must be in force when the plan starts.
        decisions: all decisions so far, oldest first.
        placement: who computes what.
        switch_from, switch_until: for "continue", the first and last step whose vote may switch (docs/protocols.md 3.2).
        source_indices: for each piece the place in `participants` of who sends it; empty for fresh and checkpoint.
        leavers: ids of members of `base` that are none of this plan: they vote for the switch, send state, and become spares.
        state_source: the id of the worker whose run state (counters, unacknowledged records) all members take.
        store_host, store_port: the TCPStore of the new global rank 0.
        reason: why the plan was made, for people.
        buddy_indices: for each piece the buddy, by its place in `participants`: a member outside the owners' failure domain that
            keeps a copy. NOBODY where the owners are in two domains already, and where no member is in another domain. Empty:
            the job keeps no copies.
        uncovered: pieces whose owners are in one domain, with no member in another.
        holders: for each piece, for "continue" and "survivors", the participants that have its state at the start.
        vote: for "survivors", the vote of `start_step`, where holders may still have to commit that step late; else None.
        state_generation, state_lineage: with start_step the tag of the state that a "survivors" plan starts from: (state_lineage,
            start_step, state_generation). A state keeps its tag until the next commit, also in a plan that opens a new `lineage`.
        run_epoch: the run epoch under which checkpoints and the result are written and read (docs/protocols.md 5.5).
        job_revision: of the job that the members follow (`frostline_contract.job.job_revision`).
        prefix_tile: how many samples frozen units compute together, the same in every plan of a run.
        backend: the transport of activations and gradients between members. The plan names it, so that all use the same one.
        state_ranges, state_tiles: how each unit's state is cut (`Pieces.cut`); the same in every plan of a run.
    """

    generation: GenerationId
    base: GenerationId | None = None
    lineage: int
    start: Literal["fresh", "continue", "checkpoint", "survivors"]
    start_step: int = -1
    checkpoint_path: str = ""
    freeze_point: int
    decision_number: int = 0
    decisions: tuple[Decision, ...] = ()
    placement: Placement
    switch_from: int = 0
    switch_until: int = 0
    source_indices: tuple[int, ...] = ()
    leavers: tuple[str, ...] = ()
    state_source: str = ""
    store_host: str = ""
    store_port: int = 0
    reason: str = ""
    buddy_indices: tuple[int, ...] = ()
    uncovered: tuple[int, ...] = ()
    holders: tuple[PieceHolders, ...] = ()
    vote: SeenVote | None = None
    state_generation: GenerationId | None = None
    state_lineage: int = 0
    run_epoch: int = 0
    job_revision: str = ""
    prefix_tile: PrefixTile = MICRO_BATCH
    backend: Backend = GLOO
    state_ranges: int = Field(default=1, ge=1)
    state_tiles: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _with_indices(cls, values: Any) -> Any:
        """Convert a plan from before there were pieces: its sources and buddies are worker ids, and it says nothing of cuts."""
        if not isinstance(values, Mapping):
            return values
        return named_by_index(values, lambda: Placement.model_validate(values.get("placement") or {}).workers)

    @cached_property
    def pieces(self) -> Pieces:
        """The table of the run's pieces."""
        return Pieces.cut(self.placement.stage_bounds[-1], self.state_ranges, self.state_tiles)

    @property
    def start_tag(self) -> StateTag | None:
        """The tag of the state that a "survivors" plan starts from; None for other starts, where the tag is made at the entry."""
        if self.start != SURVIVORS or self.state_generation is None:
            return None
        return StateTag(lineage=self.state_lineage, step=self.start_step, generation=self.state_generation)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """For each piece the worker that sends its state to members that lack it; empty for fresh and checkpoint."""
        return tuple(self.participants[index] for index in self.source_indices)

    @cached_property
    def buddies(self) -> tuple[str, ...]:
        """For each piece its buddy, "" where it has none; empty where the job keeps no copies."""
        return tuple("" if index == NOBODY else self.participants[index] for index in self.buddy_indices)

    def owners(self, piece: int) -> list[str]:
        """The members that own a piece, by global rank."""
        return self.placement.owners_of(self.pieces, piece)

    def pieces_of(self, worker_id: str) -> list[int]:
        """The pieces that a member owns, in order; empty for anybody else."""
        return self.placement.pieces_of(self.pieces, worker_id)

    def speaks_for(self, worker_id: str) -> list[int]:
        """The pieces whose first owner a member is: of all owners it reports on them."""
        return [piece for piece in self.pieces_of(worker_id) if self.owners(piece)[0] == worker_id]

    @cached_property
    def _kept_replicas(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for piece, buddy in enumerate(self.buddies):
            found.setdefault(buddy, []).append(piece)
        return found

    def replicas_kept_by(self, worker_id: str) -> list[int]:
        """The pieces whose buddy a member is, in order."""
        return list(self._kept_replicas.get(worker_id, ()))

    def needs(self, worker_id: str) -> list[int]:
        """The pieces whose state a member must have when it starts: those that it owns and those whose buddy it is."""
        return sorted({*self.pieces_of(worker_id), *self._kept_replicas.get(worker_id, ())})

    def needed_by(self, piece: int) -> list[str]:
        """The members that need a piece, in global rank order: its owners and its buddy."""
        members = {*self.owners(piece), *self.buddies[piece : piece + 1]} & self.placement.global_ranks.keys()
        return sorted(members, key=self.placement.global_ranks.__getitem__)

    def holders_of(self, piece: int) -> list[str]:
        """The participants that have a piece's state at the start."""
        return [self.participants[index] for index in self.holders[piece].participants] if self.holders else []

    @cached_property
    def _held(self) -> Mapping[str, frozenset[int]]:
        found: dict[str, list[int]] = {}
        for piece in range(len(self.holders)):
            for worker in self.holders_of(piece):
                found.setdefault(worker, []).append(piece)
        return {worker: frozenset(pieces) for worker, pieces in found.items()}

    def held_by(self, worker_id: str) -> frozenset[int]:
        """The pieces whose state a participant has at the start."""
        return self._held.get(worker_id, frozenset())

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """Members by global rank, then leavers, which still send state: the process group in which state moves."""
        return self.placement.workers + self.leavers

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Index into `participants` by worker id."""
        return {worker: place for place, worker in reversed(list(enumerate(self.participants)))}
