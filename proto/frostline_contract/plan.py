"""Plans and decisions: what is computed (numerics) and by whom (placement). Immutable, and the same on both sides of the wire.

The field names are those of frostline_proto/v1/plan.proto, so that one converter serves them all (frostline_rpc.convert).
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from frostline_contract.decision import Decision as Decision
from frostline_contract.pieces import NOBODY as NOBODY
from frostline_contract.pieces import PieceHolders as PieceHolders
from frostline_contract.pieces import Pieces
from frostline_contract.record import Degrees, Frozen, Shaped
from frostline_contract.schedules import is_folded
from frostline_contract.shape import ParallelShape
from frostline_contract.sharding import NONE, Shard
from frostline_contract.state_tag import GenerationId as GenerationId
from frostline_contract.state_tag import SeenVote as SeenVote
from frostline_contract.state_tag import StateTag as StateTag

FRESH, CONTINUE, CHECKPOINT, SURVIVORS = "fresh", "continue", "checkpoint", "survivors"

MICRO_BATCH, SAMPLE = "micro_batch", "sample"
PrefixTile = Literal["micro_batch", "sample"]
"""How many samples the frozen prefix computes together: a micro-batch, or one. It is numerics, and constant over a run."""

GLOO, NCCL = "gloo", "nccl"
Backend = Literal["gloo", "nccl"]
"""What carries activations and gradients between members. Votes and states always travel over gloo."""


class Placement(Shaped):
    """Who computes what. Changes no bit of any result.

    degrees: the shape, by axis name. stage_bounds: num_stages + 1 unit indices; stage i holds units [stage_bounds[i],
    stage_bounds[i + 1]). workers: worker ids by global rank. leaf_bounds: dp_degree + 1 leaf indices; replica r computes leaves
    [leaf_bounds[r], leaf_bounds[r + 1]). schedule: a name of the registry. use_cache: whether workers read the frozen prefix's
    output from the cache. predicted_peak_bytes: of the fullest worker, 0 for none. slices: token cells of each, () for one slice.
    shard: "none", every replica owns its stages' whole state; "step", each range of it has one replica for an owner.
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

    @property
    def is_sharded(self) -> bool:
        """Whether replicas share the state of their stages out, so that a piece has one owner."""
        return self.shard != NONE and self.dp_degree > 1

    def leaves_of(self, dp_rank: int) -> range:
        """The consecutive leaves of the summation tree that a replica computes."""
        return range(self.leaf_bounds[dp_rank], self.leaf_bounds[dp_rank + 1])

    def owners(self, unit: int) -> list[str]:
        """The members that hold `unit`, by dp rank."""
        pp_rank = self._pp_rank_of_unit.get(unit)
        return list(self.members_by_pp_rank[pp_rank]) if pp_rank is not None else []

    def owners_of(self, pieces: Pieces, piece: int) -> list[str]:
        """The members that own a piece, by dp rank: those that hold its unit, or the one whose share it is."""
        members = self.owners(pieces.unit_of(piece))
        if not self.is_sharded or not members:
            return members
        return [members[self.shape.dp_rank_of_share(pieces.ranges, pieces.piece(piece).range)]]

    def pieces_of(self, pieces: Pieces, worker_id: str) -> list[int]:
        """The pieces that a member owns, in order; empty for anybody else."""
        held = pieces.of_units(self.units_of(worker_id))
        return [piece for piece in held if worker_id in self.owners_of(pieces, piece)] if self.is_sharded else held


class Plan(Frozen):
    """One generation: a placement, the numerics in force where it starts, and where every piece of the state comes from.

    Units are what the placement deals; state is told by pieces (`frostline_contract.pieces`), whose table is `pieces`.

    start: "fresh" (the model's initial weights), "continue" (from the members of `base`, at the switch), "checkpoint", or
    "survivors" (from what is left of `base` after a failure).
    start_step: the last committed step that the state stands for (0 for fresh); for "continue" it is the switching vote's
    step, which is not known when the plan is written (-1).
    buddy_indices: for each piece the member that keeps a copy in another failure domain than its owners', by its place in
    `participants`; NOBODY where the owners are in two domains, or no member is in another, then the piece is in `uncovered`
    (empty: nobody keeps anything).
    holders: for each piece, for "continue" and "survivors", the participants that have its state at the start and are sent none.
    For "survivors" they may have to commit `start_step` late: `vote` is that step's vote (None: nobody has to), and
    state_lineage and state_generation complete the tag of the state it starts from, (state_lineage, start_step,
    state_generation): a state keeps its tag through plans, also where `lineage` is a new one, until the next commit.
    run_epoch: checkpoints and the result are written and read under it (docs/protocols.md 5.5).
    checkpoint_path: for "checkpoint", the manifest's folder relative to the checkpoint root.
    decision_number: the decision that must be in force when it starts. decisions: all decisions so far, oldest first.
    switch_from, switch_until: for "continue", the steps whose votes may switch (docs/protocols.md 3.2).
    source_indices: for each piece the participant that gives its state to members that lack it, by its place (empty for fresh
    and checkpoint).
    state_ranges: ranges that each unit's state is cut into: one piece each, the same in every plan of a run.
    leavers: members of `base` but not of this plan: they vote for the switch, give state away, and become spares.
    state_source: the worker whose run state (counters, unacknowledged records) all members take.
    store_host, store_port: the TCPStore of the new global rank 0.
    job_revision: of the job that its members follow (`frostline_contract.job.job_revision`).
    prefix_tile: how many samples frozen units compute together, the same in every plan of a run.
    backend: what carries activations and gradients between members: the same for all of them, so nobody chooses it by itself.
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

    @model_validator(mode="before")
    @classmethod
    def _with_indices(cls, values: Any) -> Any:
        """A plan of before there were pieces names sources and buddies by worker id, and says no state_ranges."""
        return _named_by_index(values) if isinstance(values, Mapping) else values

    @cached_property
    def pieces(self) -> Pieces:
        """The table of the run's pieces."""
        return Pieces(self.placement.stage_bounds[-1], self.state_ranges)

    @property
    def start_tag(self) -> StateTag | None:
        """The state that a "survivors" plan starts from; for other starts None: it is named where the plan is entered."""
        if self.start != SURVIVORS or self.state_generation is None:
            return None
        return StateTag(lineage=self.state_lineage, step=self.start_step, generation=self.state_generation)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """For each piece the worker that gives its state to members that lack it; empty for fresh and checkpoint."""
        return tuple(self.participants[index] for index in self.source_indices)

    @cached_property
    def buddies(self) -> tuple[str, ...]:
        """For each piece the member that keeps a copy, "" for nobody; empty where nobody keeps anything."""
        return tuple("" if index == NOBODY else self.participants[index] for index in self.buddy_indices)

    def owners(self, piece: int) -> list[str]:
        """The members that own a piece, by dp rank."""
        return self.placement.owners_of(self.pieces, piece)

    def pieces_of(self, worker_id: str) -> list[int]:
        """The pieces that a member owns, in order; empty for anybody else."""
        return self.placement.pieces_of(self.pieces, worker_id)

    def speaks_for(self, worker_id: str) -> list[int]:
        """The pieces whose first owner a member is: of all owners it tells the others of them."""
        return [piece for piece in self.pieces_of(worker_id) if self.owners(piece)[0] == worker_id]

    @cached_property
    def _wards(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for piece, buddy in enumerate(self.buddies):
            found.setdefault(buddy, []).append(piece)
        return found

    def wards_of(self, worker_id: str) -> list[int]:
        """The pieces of others that a member keeps a copy of, in order."""
        return list(self._wards.get(worker_id, ()))

    def needs(self, worker_id: str) -> list[int]:
        """The pieces whose state a member must have when it starts: its own and its wards."""
        return sorted({*self.pieces_of(worker_id), *self._wards.get(worker_id, ())})

    def needed_by(self, piece: int) -> list[str]:
        """The members that need a piece, in global rank order: its owners and its buddy."""
        owners = self.owners(piece)
        buddy = self.buddies[piece] if self.buddies else ""
        if buddy not in self.placement.global_ranks or buddy in owners:
            return owners
        return sorted([*owners, buddy], key=self.placement.global_ranks.__getitem__)

    def holders_of(self, piece: int) -> list[str]:
        """The participants that have a piece's state at the start."""
        participants = self.participants
        return [participants[index] for index in self.holders[piece].participants] if self.holders else []

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
        """Members by global rank, then leavers that still give state away: the world in which state moves."""
        return self.placement.workers + self.leavers

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Index into `participants` by worker id."""
        return {worker: place for place, worker in reversed(list(enumerate(self.participants)))}


def _named_by_index(values: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's values with indices of sources and buddies. Where a message has both, ids are for older readers.

    Raises ValueError for a worker that is no participant.
    """
    found = {name: value for name, value in values.items() if name not in ("sources", "buddies")}
    found["state_ranges"] = values.get("state_ranges") or 1
    for older, name in (("sources", "source_indices"), ("buddies", "buddy_indices")):
        if values.get(older) and not values.get(name):
            placement = Placement.model_validate(values.get("placement") or {})
            places = {worker: place for place, worker in enumerate((*placement.workers, *values.get("leavers", ())))}
            if unknown := sorted(set(values[older]) - places.keys() - {""}):
                raise ValueError(f"{older} name {unknown[0]!r}, which is no participant of the plan")
            found[name] = tuple(places.get(worker, NOBODY) for worker in values[older])
    return found
