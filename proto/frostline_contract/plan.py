"""Plans and decisions: what is computed (numerics) and by whom (placement). Immutable, and the same on both sides of the wire.

The field names are those of frostline_proto/v1/plan.proto, so that one converter serves them all (frostline_rpc.convert).
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

from frostline_contract.record import Degrees, Frozen, Shaped
from frostline_contract.shape import ParallelShape

CHECKPOINT = "checkpoint"
FRESH = "fresh"
CONTINUE = "continue"
SURVIVORS = "survivors"

MICRO_BATCH = "micro_batch"
SAMPLE = "sample"
PrefixTile = Literal["micro_batch", "sample"]
"""How many samples the frozen prefix computes together: a micro-batch, or one. It is numerics, and constant over a run."""

GLOO, NCCL = "gloo", "nccl"
Backend = Literal["gloo", "nccl"]
"""What carries activations and gradients between members. Votes and states always travel over gloo."""


class Decision(Frozen):
    """A policy's verdict on one interval, bound to the step at which it takes effect (docs/protocols.md 6.2).

    number: from 1, one an interval ('no change' too). interval: the interval that it read.
    effective_step: the first step computed under it. freeze_point: index of the first trainable unit from then on.
    lineage: the one that it belongs to; for a rollback, the one that it opens. decided_in: the run's lineage when it was
    decided, in which workers adopt it; for a rollback, the one that it ends. (decided_in, number) names a decision: a lineage
    decides each interval once. reason: the policy's own words.
    rollback_to_step: for a rollback, the checkpointed step whose state comes back before `effective_step` would be
    computed; -1 otherwise. void: it did not arrive in time and changed nothing.
    """

    number: int
    interval: int
    effective_step: int
    freeze_point: int
    lineage: int = 0
    decided_in: int = 0
    kind: Literal["keep", "freeze", "unfreeze", "rollback"] = "keep"
    reason: str = ""
    policy: str = ""
    rollback_to_step: int = -1
    void: bool = False


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


class GenerationId(Frozen):
    """Monotonic id of one agreed membership, shape and freeze point: compared by incarnation, then counter."""

    incarnation: int
    counter: int

    def __eq__(self, other: object) -> bool:
        # Compared for each worker in every round of the controller: pydantic's own comparison takes ten times as long.
        if self is other:
            return True
        if not isinstance(other, GenerationId):
            return NotImplemented
        return self.incarnation == other.incarnation and self.counter == other.counter

    def __hash__(self) -> int:
        return hash((self.incarnation, self.counter))

    def __lt__(self, other: "GenerationId") -> bool:
        return (self.incarnation, self.counter) < (other.incarnation, other.counter)

    def __le__(self, other: "GenerationId") -> bool:
        return (self.incarnation, self.counter) <= (other.incarnation, other.counter)

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.counter}"


class SeenVote(Frozen):
    """The all-reduced slots of the vote of `step` in `generation`: from them whoever commits late computes the same update."""

    lineage: int
    step: int
    generation: GenerationId
    slots: tuple[float, ...]


class StateTag(Frozen):
    """Names one state of a unit: (lineage, last committed step, generation whose vote committed it; docs/protocols.md 4.4).

    For a state that was restored or drawn afresh, the generation of the plan that did so.
    """

    lineage: int
    step: int
    generation: GenerationId


class UnitHolders(Frozen):
    """Indices into Plan.participants of those that hold a unit's state at the plan's start."""

    participants: tuple[int, ...] = ()


class Plan(Frozen):
    """One generation: a placement, the numerics in force where it starts, and where every unit's state comes from.

    start: "fresh" (the model's initial weights), "continue" (from the members of `base`, at the switch), "checkpoint", or
    "survivors" (from what is left of `base` after a failure).
    start_step: the last committed step that the state stands for (0 for fresh); for "continue" it is the switching vote's
    step, which is not known when the plan is written (-1).
    buddies: for each unit the member that keeps a copy in another failure domain than its owners'; "" where the owners are in
    two domains, or no member is in another, then the unit is in `uncovered` (empty: nobody keeps anything).
    holders: for each unit, for "continue" and "survivors", the participants that have its state at the start: they are sent none.
    For "survivors" they may have to commit `start_step` late: `vote` is that step's vote (None: nobody has to), and
    state_lineage and state_generation complete the tag of the state it starts from, (state_lineage, start_step,
    state_generation): a state keeps its tag through plans, also where `lineage` is a new one, until the next commit.
    run_epoch: checkpoints and the result are written and read under it (docs/protocols.md 5.5).
    checkpoint_path: for "checkpoint", the manifest's folder relative to the checkpoint root.
    decision_number: the decision that must be in force when it starts. decisions: all decisions so far, oldest first.
    switch_from, switch_until: for "continue", the steps whose votes may switch (docs/protocols.md 3.2).
    sources: for each unit the worker id that gives its state to members that lack it (empty for fresh and checkpoint).
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
    sources: tuple[str, ...] = ()
    leavers: tuple[str, ...] = ()
    state_source: str = ""
    store_host: str = ""
    store_port: int = 0
    reason: str = ""
    buddies: tuple[str, ...] = ()
    uncovered: tuple[int, ...] = ()
    holders: tuple[UnitHolders, ...] = ()
    vote: SeenVote | None = None
    state_generation: GenerationId | None = None
    state_lineage: int = 0
    run_epoch: int = 0
    job_revision: str = ""
    prefix_tile: PrefixTile = MICRO_BATCH
    backend: Backend = GLOO

    @property
    def start_tag(self) -> StateTag | None:
        """The state that a "survivors" plan starts from; for other starts None: it is named where the plan is entered."""
        if self.start != SURVIVORS or self.state_generation is None:
            return None
        return StateTag(lineage=self.state_lineage, step=self.start_step, generation=self.state_generation)

    @cached_property
    def _wards(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for unit, buddy in enumerate(self.buddies):
            found.setdefault(buddy, []).append(unit)
        return found

    def wards_of(self, worker_id: str) -> list[int]:
        """The units of others that a member keeps a copy of, in order."""
        return list(self._wards.get(worker_id, ()))

    def needs(self, worker_id: str) -> list[int]:
        """The units whose state a member must have when it starts: its own and its wards."""
        return sorted({*self.placement.units_of(worker_id), *self._wards.get(worker_id, ())})

    def needed_by(self, unit: int) -> list[str]:
        """The members that need `unit`, in global rank order: its owners and its buddy."""
        owners = self.placement.owners(unit)
        buddy = self.buddies[unit] if self.buddies else ""
        if buddy not in self.placement.global_ranks or buddy in owners:
            return owners
        return sorted([*owners, buddy], key=self.placement.global_ranks.__getitem__)

    def holders_of(self, unit: int) -> list[str]:
        """The participants that have `unit`'s state at the start."""
        participants = self.participants
        return [participants[index] for index in self.holders[unit].participants] if self.holders else []

    @cached_property
    def _held(self) -> Mapping[str, frozenset[int]]:
        found: dict[str, list[int]] = {}
        for unit in range(len(self.holders)):
            for worker in self.holders_of(unit):
                found.setdefault(worker, []).append(unit)
        return {worker: frozenset(units) for worker, units in found.items()}

    def held_by(self, worker_id: str) -> frozenset[int]:
        """The units whose state a participant has at the start."""
        return self._held.get(worker_id, frozenset())

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """Members by global rank, then leavers that still give state away: the world in which state moves."""
        return self.placement.workers + self.leavers

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Index into `participants` by worker id."""
        return {worker: place for place, worker in reversed(list(enumerate(self.participants)))}
