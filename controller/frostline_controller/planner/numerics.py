"""The choice of micro-batch size and leaves where a job says `auto`: pure, from measured unit times and the planner's plans.

Few leaves allow few, large micro-batches, which compute faster; enough of both let the most workers fill their replicas and their
pipeline. The planner weighs the two: each pair (micro-batch size, leaves) is planned for the fewest and the most workers that the
run may have (the fewest count for less), and for the most workers with half the blocks frozen and with all but one, as far as
policy and rails allow, within the memory of a worker. Among pairs close to the best one the fewest micro-batches are chosen,
since such small differences of measurements are noise; then leaves for as many replicas as workers can form, since these numbers
stay for the whole run, while shapes are planned again from what it measures; then the fewest leaves, which need the least memory.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from frostline_contract.communicators import most_communicator_bytes
from frostline_contract.job import Job
from frostline_contract.job.automatic import Settled, at_size
from frostline_contract.job.section import AUTO
from frostline_contract.mesh import in_words
from frostline_contract.statistics import LinkProfile, SizeProfiles, UnitProfile
from frostline_controller.decisions.rails import deepest_freeze_point
from frostline_controller.decisions.registry import find_policy
from frostline_controller.planner.in_words import seconds_in_words
from frostline_controller.planner.inputs import MemberInfo, PlanInputs, with_numerics_of
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.quota import quota_of
from frostline_controller.planner.search import make_plan

NEAR = 0.03
"""How much slower than the best a pair may be, on average over the worlds, to be chosen for its fewer micro-batches."""

FEWEST_WEIGHT = 0.25
"""Weight of the step with the fewest workers beside those with the most: a run comes there only by losses."""


@dataclass(frozen=True)
class _Tried:
    """One pair of micro-batch size and leaves, with the plan for each world; None where nothing fits."""

    micro_batch_size: int
    num_microbatches: int
    reduction_leaves: int
    plans: tuple[PlannedPlacement | None, ...]

    @property
    def unfit(self) -> int:
        """The number of worlds in which nothing fits."""
        return self.plans.count(None)

    def slowness(self, weights: list[float]) -> float:
        """Return the weighted mean logarithm of the seconds a sample. weights: of each world; 0: it does not count."""
        pairs = [(plan, weight) for plan, weight in zip(self.plans, weights, strict=True) if plan is not None and weight > 0]
        total = sum(weight * math.log(plan.cost.seconds_per_sample) for plan, weight in pairs)
        return total / (sum(weight for _, weight in pairs) or 1.0)


def settle(job: Job, inputs: PlanInputs, profiles: Mapping[int, tuple[UnitProfile, ...]]) -> Settled:
    """Return the numbers in place of the job's `auto`, and the reason.

    Args:
        job: the job whose `auto` fields are settled, for the job's numbers of workers.
        inputs: the planner's inputs for the most workers, at any micro-batch size, as the run begins.
        profiles: unit costs by micro-batch size, for the sizes that may be chosen.

    Raises:
        ValueError: no measured size gives enough micro-batches, or no placement fits at any size; the message has the numbers.
    """
    worlds = _worlds(job, inputs)
    tried = [one for size in sorted(profiles) for one in _at_size(job, inputs, worlds, size, profiles[size])]
    if not tried:
        raise ValueError(
            f"training.{' and training.'.join(job.training.automatic)} cannot be settled: no size was measured that gives "
            f"batch_size {job.training.batch_size} enough micro-batches; set them"
        )
    fewest_unfit = min(one.unfit for one in tried)
    fitting = [one for one in tried if one.unfit == fewest_unfit]
    if fewest_unfit == len(worlds):
        return _refuse(inputs, worlds[-1], profiles)
    usual = [1.0 if len(world.members) == len(inputs.members) else FEWEST_WEIGHT for world in worlds]
    weights = [weight * all(one.plans[index] is not None for one in fitting) for index, weight in enumerate(usual)]
    best = min(one.slowness(weights) for one in fitting)
    near = [one for one in fitting if one.slowness(weights) <= best + math.log1p(NEAR)]
    replicas = _most_replicas(job)
    chosen = min(near, key=lambda one: (one.num_microbatches, max(0, replicas - one.reduction_leaves), one.reduction_leaves))
    return Settled(
        micro_batch_size=chosen.micro_batch_size,
        reduction_leaves=chosen.reduction_leaves,
        reason=_reason(job, chosen, fitting, weights, worlds, sorted(profiles)),
    )


def measured_inputs(job: Job, measured: SizeProfiles, slots: int | None) -> PlanInputs:
    """Return the planner's inputs before the run's workers are known: the job's number of workers, each like the measuring one.

    Args:
        job: with `auto` in it.
        measured: by one worker, or by several of one machine. With `placement.worker_cpus` its times are already those
            of its share.
        slots: workers that can compute at once on one machine; None: all.
    """
    first, section = measured.profiles[0], job.placement
    single = at_size(job, first.micro_batch_size)
    members = tuple(
        MemberInfo(f"worker-{i}", f"node-{i // section.workers_per_pod}", first.memory_bytes) for i in range(section.workers)
    )
    frozen = min(job.initial_freeze_point(len(first.units)), len(first.units) - 1)
    on_gpus = first.device != "cpu" and section.backend != "gloo"
    inputs = PlanInputs(
        units=first.units,
        micro_batch_size=first.micro_batch_size,
        num_microbatches=single.training.num_microbatches,
        reduction_leaves=1,
        freeze_point=frozen,
        never_learnt=frozen,
        members=members,
        link=measured.link or LinkProfile(),
        cache_available=job.elastic.cache and job.data.augmentation.mode != "recompute",
        cache_use=job.cache.use,
        tied=measured.tied,
        elastic=job.elastic,
        placement=section,
        parallel_slots=slots,
        boundary_bytes_per_sample=measured.boundary_bytes_per_sample,
        base_bytes=most_communicator_bytes(len(members), job.most_tp_degree, job.most_tp_depth) if on_gpus else 0,
        quota=quota_of(job, first.quota_period_seconds),
        optimizer_seconds_per_byte=first.optimizer_seconds_per_byte or PlanInputs.optimizer_seconds_per_byte,
    )
    return with_numerics_of(job, inputs)


def settle_measured(job: Job, measured: SizeProfiles, slots: int | None) -> Settled:
    """Return `settle` of measurements at several sizes. Raises ValueError as `settle` does."""
    profiles = {one.micro_batch_size: one.units for one in measured.profiles}
    return settle(job, measured_inputs(job, measured, slots), profiles)


def _worlds(job: Job, inputs: PlanInputs) -> list[PlanInputs]:
    """Return the worlds in which a pair is judged: the fewest workers, the most, and the most with blocks frozen."""
    section = job.placement
    pinned = math.prod(one or 1 for one in (section.pp_degree, section.dp_degree, section.tp_degree, section.tp_depth))
    fewest = max(1, pinned, section.min_workers)
    worlds = [replace(inputs, members=inputs.members[:fewest])] if fewest < len(inputs.members) else []
    worlds.append(inputs)
    later = [point for point in _later_points(job, inputs.num_units) if point > inputs.freeze_point]
    return [*worlds, *(replace(inputs, freeze_point=point) for point in later)]


def _most_replicas(job: Job) -> int:
    """Return how many replicas the job's workers can form at most."""
    section = job.placement
    in_replica = math.prod(one or 1 for one in (section.pp_degree, section.tp_degree, section.tp_depth))
    return section.dp_degree or max(1, section.workers // in_replica)


def _later_points(job: Job, num_units: int) -> list[int]:
    """Return the further freeze points to plan for: half the blocks, and all but one, at most what policy and rails allow."""
    blocks = num_units - 2
    if not job.elastic.freeze or blocks < 2:
        return []
    deepest = deepest_freeze_point(job.freeze.rails, num_units, find_policy(job.freeze.policy.name))
    return sorted({min(point, deepest) for point in (blocks // 2 + 1, blocks)})


def _at_size(job: Job, inputs: PlanInputs, worlds: list[PlanInputs], size: int, units: tuple[UnitProfile, ...]) -> list[_Tried]:
    """Return the micro-batch size with each number of leaves that the job allows and some world can use.

    Args:
        job: the job.
        inputs: the planner's inputs for the most workers, as the run begins.
        worlds: the planner's inputs for each situation that is planned for.
        size: the micro-batch size.
        units: unit costs at this size.
    """
    count = -(-job.training.batch_size // size)
    found = []
    for leaves in _leaves(job, count, len(inputs.members)):
        numerics = {"units": units, "micro_batch_size": size, "num_microbatches": count, "reduction_leaves": leaves}
        plans: list[PlannedPlacement | None] = []
        for world in worlds:
            later = world.freeze_point > inputs.freeze_point
            start = next((plan for plan in reversed(plans) if plan is not None), None) if later else None
            began = {"start_pp_degree": start.placement.pp_degree, "start_dp_degree": start.placement.dp_degree} if start else {}
            plans.append(_planned(replace(world, **numerics, **began)))
        found.append(_Tried(size, count, leaves, tuple(plans)))
    return found


def _leaves(job: Job, num_microbatches: int, workers: int) -> list[int]:
    """Return the numbers of leaves to try: the job's, or powers of two, at most the micro-batches.

    The largest is the power of two after the one that the replicas of the most workers could use.
    """
    if job.training.reduction_leaves != AUTO:
        return [job.training.reduction_leaves] if job.training.reduction_leaves <= num_microbatches else []
    least = max([job.placement.dp_degree or 1, *(one.dp_degree for one in job.reshapes)])
    most = min(num_microbatches, max(2 * (1 << (workers - 1).bit_length()), least), 1024)
    return [1 << power for power in range(11) if least <= 1 << power <= most]


def _planned(inputs: PlanInputs) -> PlannedPlacement | None:
    try:
        return make_plan(inputs)
    except ValueError:  # nothing fits: None records it
        return None


def _refuse(inputs: PlanInputs, world: PlanInputs, profiles: Mapping[int, tuple[UnitProfile, ...]]) -> Settled:
    """Raise the planner's refusal of the smallest size."""
    size = min(profiles)
    make_plan(replace(world, units=profiles[size], micro_batch_size=size, freeze_point=inputs.freeze_point, reduction_leaves=1))
    raise ValueError(f"no placement of {len(inputs.members)} workers fits at any micro-batch size of {sorted(profiles)}")


def _reason(
    job: Job, chosen: _Tried, tried: list[_Tried], weights: list[float], worlds: list[PlanInputs], sizes: list[int]
) -> str:
    """Return the choice in words: the settled numbers, their predicted steps, and the relative time of other sizes.

    Args:
        job: the job.
        chosen: the chosen pair of micro-batch size and leaves.
        tried: the pairs that fit.
        weights: of each world; 0: its plans are not compared, since some pair has none.
        worlds: the planner's inputs for each situation that was planned for.
        sizes: all micro-batch sizes that were tried.
    """
    settled = " and ".join(f"{name} {getattr(chosen, name)}" for name in job.training.automatic)
    predicted = ", ".join(
        f"{seconds_in_words(plan.cost.total_seconds)} {_world_in_words(world)} ({in_words(plan.placement.degrees)})"
        for plan, world in zip(chosen.plans, worlds, strict=True)
        if plan is not None
    )
    others = []
    for size in sizes:
        slowness = [one.slowness(weights) for one in tried if one.micro_batch_size == size]
        if size != chosen.micro_batch_size:
            ratio = f"{math.exp(min(slowness) - chosen.slowness(weights)):.2f}x" if slowness else "does not fit"
            others.append(f"{size} {ratio}")
    beside = f"; other sizes, of its time: {', '.join(others)}" if others else ""
    return f"{settled} (auto): a step of {chosen.num_microbatches} x {chosen.micro_batch_size} samples takes {predicted}{beside}"


def _world_in_words(world: PlanInputs) -> str:
    workers = len(world.members)
    frozen = f" with {world.freeze_point} of {world.num_units} units frozen" if world.freeze_point else ""
    return f"on {workers} worker{'s' if workers != 1 else ''}{frozen}"
