"""The planner's inputs: one immutable record of all that a placement depends on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import gcd
from typing import Literal

from frostline_contract.job import Job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.job.freezing import ElasticSection
from frostline_contract.job.section import AUTO
from frostline_contract.plan import Placement
from frostline_contract.schedules import schedule_named
from frostline_contract.shape import ParallelShape
from frostline_contract.sharding import STEP, USE
from frostline_contract.statistics import CacheProfile, LinkProfile, UnitProfile
from frostline_contract.tensor_rows import SPLIT
from frostline_contract.tile_grid import WHOLE, TileGrid
from frostline_controller.planner.group_messages import GroupMessages
from frostline_controller.planner.quota import Quota


class NothingFits(ValueError):
    """No placement of the present workers fits; more workers may. The message has the figures, the field and the remedy."""


@dataclass(frozen=True)
class MemberInfo:
    """One worker that the planner may use.

    Attributes:
        failure_domain: the node, or other domain, that the worker fails with.
        memory_bytes: memory that it may use; 0: unknown.
        global_rank: its place in the current placement; -1: none.
        speed: relative to the worker of the profile's unit times.
        machine: the machine, within which GPUs have fast links; "": unknown.
    """

    worker_id: str
    failure_domain: str = ""
    memory_bytes: int = 0
    global_rank: int = -1
    speed: float = 1.0
    machine: str = ""


@dataclass(frozen=True)
class PlanInputs:
    """The planner's whole view of a run; two equal inputs give equal plans.

    Attributes:
        units: measured costs at `micro_batch_size`, by unit index.
        num_microbatches: M, a step's micro-batches (with batch "per_replica" each replica's).
        reduction_leaves: L, the leaves of the summation tree.
        freeze_point: index of the first trainable unit.
        members: the present workers.
        link: between machines, or between any two members where links are not measured apart.
        near_link: within one machine; None: not measured.
        cache: measured traffic; None: not measured yet.
        cache_available: there is a cache server, and the augmentation mode allows its use.
        cache_shared: several runs share the cache.
        cache_use: the job's cache.use.
        uncacheable: why nothing may be cached, or empty.
        tied: the head uses unit 0's matrix.
        current: the placement in force; None at the start.
        start_pp_degree, start_dp_degree: degrees that the run began with; None before the start.
        steps_left: steps still to train.
        parallel_slots: workers that can compute at once (cores shared on one machine); None: all of them.
        samples_per_step: the global batch at one replica's width.
        train_samples: size of the training split; 0: unknown.
        boundary_bytes_per_sample: one sample's hidden activation.
        exact_numerics: gradients are summed over the fixed tree.
        optimizer_seconds_per_byte: seconds of an update for a byte of trainable weights.
        base_bytes: memory of a worker that holds no unit (communicators).
        token_cells: cells of each sequence.
        cell_tokens: lengths of the cells, where the job lists them; else cells count as equal.
        never_learnt: units frozen since step 1, which have no moments.
        state_ranges: ranges into which each unit's state is cut.
        tensor_tiles: tiles of a block's matrices: the most columns and the most depth of workers that share a stage.
        row_tiles: tiles of a micro-batch's samples: the most workers that may divide them.
        tiled_ends: whether tiles cut the embedding's vocabulary, and the head's logits.
        quota: of workers with a share of a processor, else None.
        group_size: of the group of workers that each member stands for; 0: groups, if any are asked for, are yet to be formed.
        messages: how tensors cross stages where members stand for groups of workers; None: each member sends whole tensors.
        may_gather: the job's numerics allow weights that are gathered at each use.
        has_audits: now and then a micro-batch is computed again: by a peer, or by a lone worker itself.
        cache_coverage: share of the boundary activations that a full cache holds.
        cached_point: freeze point whose boundary the cache in use holds; 0: no cache is in use.
        prefix_whole: whether stage 0 holds all frozen units, as the cache needs it; None: as is best (`search.make_plan`).
    """

    units: tuple[UnitProfile, ...]
    micro_batch_size: int
    num_microbatches: int
    reduction_leaves: int
    freeze_point: int
    members: tuple[MemberInfo, ...]
    link: LinkProfile = field(default_factory=LinkProfile)
    near_link: LinkProfile | None = None
    cache: CacheProfile | None = None
    cache_available: bool = False
    cache_shared: bool = False
    cache_use: Literal["auto", "always", "never"] = "auto"
    uncacheable: str = ""
    tied: bool = False
    elastic: ElasticSection = field(default_factory=ElasticSection)
    placement: PlacementSection = field(default_factory=PlacementSection)
    current: Placement | None = None
    start_pp_degree: int | None = None
    start_dp_degree: int | None = None
    steps_left: int = 1000
    parallel_slots: int | None = None
    samples_per_step: int = 0
    train_samples: int = 0
    boundary_bytes_per_sample: int = 0
    batch: Literal["global", "per_replica"] = "global"
    exact_numerics: bool = True
    optimizer_seconds_per_byte: float = 5e-10
    base_bytes: int = 0
    token_cells: int = 1
    cell_tokens: tuple[int, ...] = ()
    never_learnt: int = 0
    state_ranges: int = 1
    tensor_tiles: TileGrid = WHOLE
    row_tiles: int = 1
    tiled_ends: tuple[bool, bool] = (False, False)
    quota: Quota | None = None
    group_size: int = 0
    messages: GroupMessages | None = None
    may_gather: bool = True
    has_audits: bool = False
    cache_coverage: float = 1.0
    cached_point: int = 0
    prefix_whole: bool | None = None

    def __post_init__(self) -> None:
        if not self.units:
            raise ValueError("the profile has 0 units; a plan needs at least one")
        if not 0 <= self.freeze_point < len(self.units):
            raise ValueError(f"freeze point {self.freeze_point} leaves no trainable unit of {len(self.units)}")
        if self.never_learnt > self.freeze_point:
            raise ValueError(f"{self.never_learnt} units have never learnt, and only {self.freeze_point} are frozen")
        if not self.members:
            raise ValueError("there are 0 workers to plan for")
        if len({member.worker_id for member in self.members}) != len(self.members):
            raise ValueError(f"{len(self.members)} members have repeated worker ids")
        if not 1 <= self.reduction_leaves <= self.num_microbatches:
            raise ValueError(f"{self.num_microbatches} micro-batches cannot fill {self.reduction_leaves} reduction leaves")
        if any(member.speed <= 0 for member in self.members):
            raise ValueError(f"speeds must be positive: {[member.speed for member in self.members if member.speed <= 0]}")
        if self.parallel_slots is not None and self.parallel_slots < 1:
            raise ValueError(f"parallel_slots is {self.parallel_slots}; at least one worker must be able to compute")

    @property
    def first_cut(self) -> int:
        """The first unit at which stage 1 may begin."""
        return 1 if self.prefix_whole is False else self.freeze_point + 1

    @property
    def num_units(self) -> int:
        """Units of the model, frozen ones included."""
        return len(self.units)

    @cached_property
    def unit_state_bytes(self) -> tuple[int, ...]:
        """Bytes of weights and moments by unit; a unit that has never learnt has no moments."""
        moments = [0 if index < self.never_learnt else unit.optimizer_bytes for index, unit in enumerate(self.units)]
        return tuple(unit.parameter_bytes + own for unit, own in zip(self.units, moments, strict=True))

    @property
    def is_to_be_shared(self) -> bool:
        """Whether workers share stages, or the planner is to choose that, or the sharing of state."""
        in_groups = (self.placement.tp_degree, self.placement.tp_depth) != (1, 1)
        return (in_groups and self.group_size == 0) or self.placement.shard == AUTO

    @property
    def most_in_group(self) -> TileGrid:
        """The most columns and the most depth of a group: a tile for each, or part of the samples where members divide them."""
        return TileGrid(self.row_tiles) if self.placement.tensor_rows == SPLIT else self.tensor_tiles

    @property
    def members_are(self) -> str:
        """What the members are, in words that follow their number."""
        return f"groups of {self.group_size} workers" if self.group_size > 1 else "workers"

    @property
    def is_sharded(self) -> bool:
        """Whether replicas are to share out the state of their stages."""
        return self.placement.shard in (STEP, USE)

    @property
    def gathers_at_use(self) -> bool:
        """Whether weights of units that learn are to be gathered in each pass (`planner.gathers`)."""
        return self.placement.shard == USE

    @property
    def most_replicas(self) -> int:
        """The most replicas of any shape: each needs a leaf and, where state is shared out, a range of every unit."""
        return min(self.reduction_leaves, self.state_ranges) if self.is_sharded else self.reduction_leaves

    @property
    def most_virtual_stages(self) -> int:
        """The most stages a rank of interleaved pipelines: the job's, or two where the job leaves the choice to the planner."""
        wanted = self.placement.virtual_stages
        return 2 if wanted is None else wanted

    @property
    def trainable_units(self) -> int:
        """Units from the freeze point on; a pipeline has at most as many stages."""
        return len(self.units) - self.freeze_point

    @cached_property
    def memory_cap(self) -> float:
        """Bytes that every worker may use: the least of the job's limit and the members' memory; infinite without either."""
        return min(self._memory_caps, key=lambda one: one[0])[0]

    @property
    def memory_cap_words(self) -> str:
        """The memory cap in words, with its field and value."""
        cap, whose = min(self._memory_caps, key=lambda one: one[0])
        return f"{whose} {int(cap):,}" if cap < float("inf") else "there is no cap"

    @property
    def _memory_caps(self) -> list[tuple[float, str]]:
        """Every cap in bytes, with words for its origin; the job's first, so that it counts among equal ones."""
        asked = self.placement.worker_memory_bytes
        caps = [(float(asked), "placement.worker_memory_bytes is")] if asked is not None else []
        measured = [(float(one.memory_bytes), "a worker's device has") for one in self.members if one.memory_bytes > 0]
        return [*caps, *measured] or [(float("inf"), "")]

    @cached_property
    def machine_sizes(self) -> frozenset[int]:
        """The numbers of members that machines have; {0} where some member's machine is unknown."""
        if not all(member.machine for member in self.members):
            return frozenset({0})
        return frozenset(Counter(member.machine for member in self.members).values())

    def pipeline_link(self, pp_degree: int) -> LinkProfile:
        """Return the link of messages along a pipeline: over `near_link` where every machine holds whole pipelines.

        Members are assigned row by row, machine by machine (`planner.assignment`). Replicas of a stage are spread over machines
        on purpose, so their sums always go over `link`.
        """
        whole = all(size > 0 and gcd(size, pp_degree) == pp_degree for size in self.machine_sizes)
        return self.for_messages(self.near_link if self.near_link is not None and whole else self.link)

    def for_messages(self, link: LinkProfile) -> LinkProfile:
        """Return the link with which messages between stages are priced over this link: itself, unless groups share them."""
        return self.messages.over(link) if self.messages is not None else link

    def num_slices(self, pp_degree: int, schedule: str) -> int:
        """Return the most slices of a micro-batch in a pipeline of this depth; exactly placement.slices where that is set."""
        if pp_degree == 1 or self.token_cells == 1 or not schedule_named(schedule).takes_slices:
            return 1
        return min(self.placement.slices or self.token_cells, self.token_cells)

    def share_of_slices(self, slices: Sequence[int]) -> list[float]:
        """Return each slice's share of a micro-batch's tokens. slices: the number of cells of each."""
        tokens = self.cell_tokens or (1,) * self.token_cells
        ends = list(accumulate(slices))
        return [sum(tokens[end - cells : end]) / sum(tokens) for cells, end in zip(slices, ends, strict=True)]

    @property
    def quickest(self) -> float:
        """The least share of its sustained seconds that work takes where it begins after a wait."""
        return self.quota.share if self.quota is not None else 1.0

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """The members' speeds, fastest first."""
        return tuple(sorted((member.speed for member in self.members), reverse=True))

    def samples_of_step(self, dp_degree: int) -> int:
        """Return the samples of a step: constant, except with batch "per_replica", where they grow with the replicas."""
        samples = self.samples_per_step or self.micro_batch_size * self.num_microbatches
        return samples * dp_degree if self.batch == "per_replica" else samples


def replica_speeds(inputs: PlanInputs, workers: tuple[str, ...], shape: ParallelShape) -> list[float]:
    """Return the speed of each replica's slowest member. Members that the inputs do not name count with speed 1."""
    speed_of = {member.worker_id: member.speed for member in inputs.members}
    replicas = (shape.replica(dp_rank) for dp_rank in range(shape.dp_degree))
    return [min(speed_of.get(workers[global_rank], 1.0) for global_rank in replica) for replica in replicas]


def with_numerics_of(job: Job, inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with all that the job's numerics alone decide. Inputs of a job end with this, however they are made."""
    training = job.training
    return replace(
        inputs,
        samples_per_step=training.batch_size,
        batch=training.batch,
        exact_numerics=training.numerics == "exact",
        token_cells=training.num_cells,
        cell_tokens=training.cell_lengths,
        state_ranges=training.state_ranges,
        tensor_tiles=training.tensor_tiles.grid,
        row_tiles=training.tensor_tiles.rows,
        tiled_ends=job.tiled_ends,
        may_gather=not training.compile and not training.has_cells,
        has_audits=training.numerics == "exact" and training.audit_every_steps > 0,
    )


def parallel_slots(job: Job, cores: int) -> int | None:
    """Return how many workers of a job can compute at once on one machine; None: all, as on devices of their own.

    cores: of the machine. With placement.worker_cpus each worker has a share of its own; else workers take turns on the cores.
    """
    share = job.placement.worker_cpus
    if share is None:
        return max(1, cores // job.training.threads)
    return None if share * job.placement.workers <= cores else max(1, int(cores / share))
