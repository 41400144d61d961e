"""Plans and decisions: what is computed (numerics) and by whom (placement). Immutable, and the same on both sides of the wire.

The field names are those of frostline_proto/v1/plan.proto, so that one converter serves them all (frostline_rpc.convert).
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from frostline_contract.shape import ParallelShape

CHECKPOINT = "checkpoint"
FRESH = "fresh"
CONTINUE = "continue"
SURVIVORS = "survivors"


class Frozen(BaseModel):
    """Base of every immutable record: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Decision(Frozen):
    """A policy's verdict on one interval, bound to the step at which it takes effect (PROTOCOLS 6).

    number: from 1, one an interval ('no change' too). interval: the interval that it read.
    effective_step: the first step computed under it. freeze_point: index of the first trainable unit from then on.
    lineage: that of the statistics it read; for a rollback, the new one. reason: the policy's own words.
    rollback_to_step: for a rollback, the checkpointed step whose state comes back before `effective_step` would be
    computed; -1 otherwise. void: it did not arrive in time and changed nothing.
    """

    number: int
    interval: int
    effective_step: int
    freeze_point: int
    lineage: int = 0
    kind: Literal["keep", "freeze", "unfreeze", "rollback"] = "keep"
    reason: str = ""
    policy: str = ""
    rollback_to_step: int = -1
    void: bool = False


class Placement(Frozen):
    """Who computes what. Changes no bit of any result.

    stage_bounds: num_stages + 1 unit indices; stage i holds units [stage_bounds[i], stage_bounds[i + 1]).
    workers: worker ids by global rank. leaf_bounds: dp_degree + 1 leaf indices; replica r computes leaves
    [leaf_bounds[r], leaf_bounds[r + 1]). schedule: a name of the schedule registry ("gpipe", "1f1b", "interleaved_1f1b").
    use_cache: whether workers read the frozen prefix's output from the activation cache.
    """

    pp_degree: int
    dp_degree: int
    virtual_stages: int = 1
    stage_bounds: tuple[int, ...]
    leaf_bounds: tuple[int, ...]
    workers: tuple[str, ...]
    schedule: str = "1f1b"
    use_cache: bool = False
    predicted_step_seconds: float = 0.0

    @property
    def shape(self) -> ParallelShape:
        return ParallelShape(self.pp_degree, self.dp_degree, self.virtual_stages)

    def units_of_stage(self, stage: int) -> range:
        return range(self.stage_bounds[stage], self.stage_bounds[stage + 1])

    def units_of(self, worker_id: str) -> list[int]:
        """The units that a member holds, in order; empty for anybody else."""
        if worker_id not in self.workers:
            return []
        pp_rank = self.shape.pp_rank(self.workers.index(worker_id))
        return [unit for stage in self.shape.stages_of(pp_rank) for unit in self.units_of_stage(stage)]

    def leaves_of(self, dp_rank: int) -> range:
        return range(self.leaf_bounds[dp_rank], self.leaf_bounds[dp_rank + 1])

    def owners(self, unit: int) -> list[str]:
        """The members that hold `unit`, by dp rank."""
        return [worker for worker in self.workers if unit in self.units_of(worker)]


class GenerationId(Frozen):
    """Monotonic id of one agreed membership, shape and freeze point: compared by incarnation, then counter."""

    incarnation: int
    counter: int

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
    """Names one state of a unit: (lineage, last committed step, generation whose vote committed it; PROTOCOLS 4).

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
    run_epoch: checkpoints and the result are written and read under it (PROTOCOLS 5).
    checkpoint_path: for "checkpoint", the manifest's folder relative to the checkpoint root.
    decision_number: the decision that must be in force when it starts. decisions: all decisions so far, oldest first.
    switch_from, switch_until: for "continue", the steps whose votes may switch (PROTOCOLS 3).
    sources: for each unit the worker id that gives its state to members that lack it (empty for fresh and checkpoint).
    leavers: members of `base` but not of this plan: they vote for the switch, give state away, and become spares.
    state_source: the worker whose run state (counters, unacknowledged records) all members take.
    store_host, store_port: the TCPStore of the new global rank 0.
    job_revision: of the job that its members follow (`frostline_contract.job.job_revision`).
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

    @property
    def start_tag(self) -> StateTag | None:
        """The state that a "survivors" plan starts from; for other starts None: it is named where the plan is entered."""
        if self.start != SURVIVORS or self.state_generation is None:
            return None
        return StateTag(lineage=self.state_lineage, step=self.start_step, generation=self.state_generation)

    def wards_of(self, worker_id: str) -> list[int]:
        """The units of others that a member keeps a copy of, in order."""
        return [unit for unit, buddy in enumerate(self.buddies) if buddy == worker_id]

    def needs(self, worker_id: str) -> list[int]:
        """The units whose state a member must have when it starts: its own and its wards."""
        return sorted({*self.placement.units_of(worker_id), *self.wards_of(worker_id)})

    def holders_of(self, unit: int) -> list[str]:
        """The participants that have `unit`'s state at the start."""
        participants = self.participants
        return [participants[index] for index in self.holders[unit].participants] if self.holders else []

    @property
    def participants(self) -> tuple[str, ...]:
        """Members by global rank, then leavers that still give state away: the world in which state moves."""
        return self.placement.workers + self.leavers
