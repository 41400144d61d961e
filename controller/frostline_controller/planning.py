"""The planner's adapter: from what the controller knows to a placement, and whether a change to it pays."""

from dataclasses import dataclass
from statistics import median

from frostline_contract.job import Job
from frostline_contract.plan import Placement
from frostline_contract.statistics import CacheProfile, LinkProfile, WorkerProfile
from frostline_controller.membership import Worker
from frostline_controller.planner.cost import placement_cost
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shapes import asked_degrees
from frostline_controller.planner.verdict import should_reshape
from frostline_controller.state.durable import PinnedShape


@dataclass(frozen=True)
class Situation:
    """What a placement is chosen for.

    workers: those that a plan may name, members of the current placement first. start: (pp, dp) that the run began with,
    zeros before. pinned: a shape by command. steps_left: of the run. reshape_seconds: measured, of the last reshape.
    parallel_slots: workers that can compute at once on one machine; None: all. cache_reachable: a cache server is there.
    tied: the head uses unit 0's matrix. present: ids of workers that are there, where that is more than `workers`.
    """

    num_units: int
    freeze_point: int
    workers: tuple[Worker, ...]
    current: Placement | None
    start: tuple[int, int]
    pinned: PinnedShape | None
    steps_left: int
    reshape_seconds: float
    boundary_bytes_per_sample: int
    cacheable: bool
    cache_reachable: bool
    train_samples: int
    parallel_slots: int | None
    tied: bool = False
    present: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """A placement, why it is the best, and whether it is worth a reshape from the current one, with the figures."""

    placement: Placement
    pays: bool
    reason: str
    verdict: str = ""


def choose_placement(job: Job, situation: Situation) -> Choice:
    """The planner's best placement for the situation. Raises ValueError where nothing fits, with the numbers."""
    inputs = plan_inputs(job, situation)
    planned = make_plan(inputs)
    reason = f"{planned.reason}; {planned.cache_reason}" if planned.cache_reason else planned.reason
    if situation.pinned is not None:
        reason = f"shape by command; {reason}"
    current = situation.current
    there = {worker.worker_id for worker in situation.workers} | situation.present
    if current is None or any(worker not in there for worker in current.workers):
        return Choice(planned.placement, True, reason)
    asked = asked_degrees(inputs)
    if situation.pinned is None and _has(planned.placement, asked) and not _has(current, asked):
        return Choice(planned.placement, True, f"the shape that the job asks for fits again; {reason}")
    before, after = len(current.workers), len(planned.placement.workers)
    # The planner names more workers only to keep the pace; worker-seconds, of which fewer workers always need fewer, are
    # what giving workers back is judged by.
    objective = job.placement.objective if after <= before else "throughput"
    pays, verdict = should_reshape(
        placement_cost(current, inputs), planned.cost, situation.steps_left, situation.reshape_seconds,
        job.placement.hysteresis, objective, before, after,
    )  # fmt: skip
    return Choice(planned.placement, pays, reason, verdict)


def _has(placement: Placement, asked: tuple[int | None, int | None]) -> bool:
    """Whether it has the degrees that are asked for."""
    pp_degree, dp_degree = asked
    return pp_degree in (None, placement.pp_degree) and dp_degree in (None, placement.dp_degree)


def plan_inputs(job: Job, situation: Situation) -> PlanInputs:
    """What the planner may know. Raises ValueError for workers that measured no units."""
    section, elastic = job.placement, job.elastic
    pinned = situation.pinned
    if pinned is not None:
        section = section.model_copy(update=pinned.model_dump(include={"pp_degree", "dp_degree", "schedule", "virtual_stages"}))
        elastic = elastic.model_copy(update={"pipeline": True, "replicas": True})
    profile = reference_profile(situation.workers, one_machine=situation.parallel_slots is not None)
    current = situation.current
    return PlanInputs(
        units=profile.units,
        micro_batch_size=profile.micro_batch_size,
        num_microbatches=job.training.num_microbatches,
        reduction_leaves=job.training.reduction_leaves,
        freeze_point=situation.freeze_point,
        members=tuple(_member(worker, profile, current, situation.parallel_slots is not None) for worker in situation.workers),
        link=measured_link(situation.workers) or LinkProfile(),
        cache=_cache(situation.workers),
        cache_available=elastic.cache and situation.cacheable and situation.cache_reachable,
        cache_use=job.cache.use,
        tied=situation.tied,
        elastic=elastic,
        placement=section,
        current=current,
        start_pp_degree=situation.start[0] or None,
        start_dp_degree=situation.start[1] or None,
        steps_left=situation.steps_left,
        measured_reshape_seconds=situation.reshape_seconds,
        parallel_slots=situation.parallel_slots,
        samples_per_step=job.training.batch_size,
        train_samples=situation.train_samples,
        boundary_bytes_per_sample=situation.boundary_bytes_per_sample,
        batch=job.training.batch,
        exact_numerics=job.training.numerics == "exact",
    )


def reference_profile(workers: tuple[Worker, ...], one_machine: bool) -> WorkerProfile:
    """The profile of the worker whose units' total time is the median: one outlier on a busy machine misleads nobody.

    one_machine: all workers share this machine, so that they differ by noise alone, which only adds (they measure while they
    all start): each unit's least times.
    """
    profiles = sorted((worker.profile for worker in workers), key=_total_seconds)
    if not one_machine:
        return profiles[(len(profiles) - 1) // 2]
    units = [
        unit.model_copy(
            update={name: min(getattr(one, name) for one in alike) for name in ("forward_seconds", "backward_seconds")}
        )
        for unit, *alike in zip(profiles[0].units, *(profile.units for profile in profiles), strict=True)
    ]
    return profiles[0].model_copy(update={"units": tuple(units)})


def _total_seconds(profile: WorkerProfile) -> float:
    return sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units)


def _member(worker: Worker, reference: WorkerProfile, current: Placement | None, one_machine: bool) -> MemberInfo:
    """Speeds differ between kinds of devices, and where a member has lastingly computed more slowly than its peers.

    Else a measured difference is noise; on one machine, whose cores all share, it always is.
    """
    speed = 1.0
    if worker.lasting_slowness > 1 and not one_machine:
        speed = 1.0 / worker.lasting_slowness
    elif worker.profile.device != reference.device and _total_seconds(worker.profile) > 0:
        speed = _total_seconds(reference) / _total_seconds(worker.profile)
    place = current.workers.index(worker.worker_id) if current and worker.worker_id in current.workers else -1
    return MemberInfo(worker.worker_id, worker.failure_domain, worker.profile.memory_bytes, place, speed or 1.0)


def measured_link(workers: tuple[Worker, ...]) -> LinkProfile | None:
    """Field by field the median of what workers measured; None before anybody has."""
    found = [worker.link for worker in workers if worker.link is not None]
    if not found:
        return None
    return LinkProfile(**{name: median(getattr(link, name) for link in found) for name in LinkProfile.model_fields})


def _cache(workers: tuple[Worker, ...]) -> CacheProfile | None:
    """Field by field the median; None before anybody has read from the cache."""
    found = [worker.cache for worker in workers if worker.cache is not None and worker.cache.fetch_seconds_per_sample > 0]
    if not found:
        return None
    return CacheProfile(**{name: median(getattr(cache, name) for cache in found) for name in CacheProfile.model_fields})
