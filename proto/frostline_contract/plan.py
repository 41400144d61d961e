"""The record of a plan: who computes what, and from which state. Immutable, the same on both sides of the wire.

The field names are those of frostline_proto/v1/plan.proto, so that one converter serves them all (frostline_rpc.convert).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from frostline_contract.decision import Decision as Decision
from frostline_contract.older_plan import named_by_index
from frostline_contract.pieces import NOBODY as NOBODY
from frostline_contract.pieces import PieceHolders as PieceHolders
from frostline_contract.pieces import Pieces
from frostline_contract.placement import Placement as Placement
from frostline_contract.record import Frozen
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
        state_ranges, state_tiles, hidden_tiles: how each unit's state is cut (`Pieces.cut`); the same in every plan of a run.
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
    hidden_tiles: int = Field(default=1, ge=1)

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
        return Pieces.cut(self.placement.stage_bounds[-1], self.state_ranges, self.state_tiles, self.hidden_tiles)

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
