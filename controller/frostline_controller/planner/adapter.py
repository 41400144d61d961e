"""The planner's adapter: turns the controller's knowledge of a run into a placement, and judges whether a change to it pays."""

from collections.abc import Mapping
from dataclasses import dataclass

from frostline_contract.communicators import most_communicator_bytes
from frostline_contract.job import Job
from frostline_contract.mesh import Mesh
from frostline_contract.plan import NCCL, Placement
from frostline_contract.schedules import schedule_named
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile, UnitProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.backend import choose_backend
from frostline_controller.planner.inputs import MemberInfo, PlanInputs, with_numerics_of
from frostline_controller.planner.measurements import measured_cache, measured_link, median_link, reference_profile
from frostline_controller.planner.quota import quota_of
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shapes import asked_degrees
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.planner.verdict import should_reshape
from frostline_controller.run.pinned import PinnedShape


def check_shapes(job: Job, num_units: int) -> None:
    """Check the shapes and schedules that the job asks for against the model and the schedules installed with the controller.

    Raises:
        ValueError: a pipeline has more stages than the model has units, or the controller does not know a schedule.
    """
    placement = job.placement
    schedules = {f"reshapes.{index}.schedule": one.schedule for index, one in enumerate(job.reshapes)}
    for field, name in {"placement.schedule": placement.schedule, **schedules}.items():
        if name != "auto":
            schedule_named(name, field)
    asked = {
        "placement.pp_degree": placement.pp_degree or 1,
        "placement.initial_pp_degree": placement.initial_pp_degree or 1,
        **{f"reshapes.{index}.pp_degree": one.pp_degree for index, one in enumerate(job.reshapes)},
    }
    for field, pp_degree in asked.items():
        if pp_degree > num_units:
            raise ValueError(f"{field} is {pp_degree}, and the model has {num_units} units: each stage needs one; lower it")


@dataclass(frozen=True)
class Situation:
    """The state of a run for which a placement is chosen.

    Attributes:
        workers: the workers that a plan may name, members of the current placement first.
        start: degrees that the run began with; empty before its first plan.
        pinned: the shape that a user has commanded.
        steps_left: steps that the run has still to train.
        reshape_seconds: measured duration of the last reshape.
        uncacheable: why nothing may be cached in this run; empty where caching is allowed.
        cache_reachable: whether there is a cache server.
        parallel_slots: workers that can compute at once on one machine; None: all.
        tied: whether the head uses unit 0's matrix.
        prefix_cost: factor from a frozen unit's profiled time to its time in this run.
        cache_shared: whether several runs share the cache.
        present: ids of present workers, where there are more of them than `workers`.
        memory_limit_bytes: most memory that a plan may be predicted to need, after a plan with a higher prediction ran out of
            memory; 0: no plan has.
        never_learnt: units that have been frozen since step 1.
        optimizer_seconds_per_byte: seconds of an update for a byte of trainable weights, where no worker has measured it.
        cached_point: freeze point whose boundary the cache in use holds; 0: no cache is in use.
        cache_coverage: share of the boundary activations that a full cache holds, where that is known.
    """

    num_units: int
    freeze_point: int
    workers: tuple[Worker, ...]
    current: Placement | None
    start: Mapping[str, int]
    pinned: PinnedShape | None
    steps_left: int
    reshape_seconds: float
    boundary_bytes_per_sample: int
    uncacheable: str
    cache_reachable: bool
    train_samples: int
    parallel_slots: int | None
    tied: bool = False
    prefix_cost: float = 1.0
    cache_shared: bool = False
    present: frozenset[str] = frozenset()
    memory_limit_bytes: int = 0
    never_learnt: int = 0
    optimizer_seconds_per_byte: float = PlanInputs.optimizer_seconds_per_byte
    cached_point: int = 0
    cache_coverage: float = 1.0


@dataclass(frozen=True)
class Choice:
    """A placement, why it is the best, and whether a reshape from the current placement to it pays, with the figures."""

    placement: Placement
    pays: bool
    reason: str
    verdict: str = ""


def choose_placement(job: Job, situation: Situation) -> Choice:
    """Return the planner's best placement for the situation.

    Raises:
        ValueError: no placement fits; the message has the numbers.
    """
    inputs = plan_inputs(job, situation)
    planned = make_plan(inputs)
    reason = f"{planned.reason}; {planned.cache_reason}" if planned.cache_reason else planned.reason
    if situation.pinned is not None:
        reason = f"shape by command; {reason}"
    current = situation.current
    there = {worker.worker_id for worker in situation.workers} | situation.present
    if current is None or any(worker not in there for worker in current.workers):
        return Choice(planned.placement, True, reason)
    asked = (*asked_degrees(inputs), inputs.placement.tp_degree, inputs.placement.tp_depth)
    if situation.pinned is None and _has(planned.placement, asked) and not _has(current, asked):
        return Choice(planned.placement, True, f"the shape that the job asks for fits again; {reason}")
    before, after = len(current.workers), len(planned.placement.workers)
    # The planner adds workers only to keep the pace, so more workers are judged by throughput; handing workers back is judged
    # by worker-seconds, which fewer workers always need fewer of.
    objective = job.placement.objective if after <= before else "throughput"
    pays, verdict = should_reshape(
        placement_cost(current, inputs), planned.cost, situation.steps_left, situation.reshape_seconds,
        job.placement.hysteresis, objective, before, after,
    )  # fmt: skip
    return Choice(planned.placement, pays, reason, verdict)


def _has(placement: Placement, asked: tuple[int | None, ...]) -> bool:
    """Whether the placement has the degrees (pp, dp, columns, depth) of `asked`; None stands for any degree."""
    degrees = (placement.pp_degree, placement.dp_degree, placement.shape.tp_columns, placement.shape.tp_depth)
    return all(wanted in (None, degree) for wanted, degree in zip(asked, degrees, strict=True))


def plan_inputs(job: Job, situation: Situation) -> PlanInputs:
    """Return the planner's inputs for the situation. Raises ValueError for workers that measured no units."""
    section, elastic = job.placement, job.elastic
    pinned = situation.pinned
    if pinned is not None:
        shape = ParallelShape.of(pinned.degrees)
        tensor = {"tp_degree": shape.tp_columns, "tp_depth": shape.tp_depth}
        degrees = {"pp_degree": shape.pp_degree, "dp_degree": shape.dp_degree, **tensor}
        slices = {name: value for name in ("slices", "shard", "tensor_rows") if (value := getattr(pinned, name)) is not None}
        section = section.model_copy(update=degrees | slices | pinned.model_dump(include={"schedule", "virtual_stages"}))
        elastic = elastic.model_copy(update={"pipeline": True, "replicas": True})
    if situation.memory_limit_bytes:
        known = section.worker_memory_bytes or situation.memory_limit_bytes
        section = section.model_copy(update={"worker_memory_bytes": min(known, situation.memory_limit_bytes)})
    profile = reference_profile(situation.workers, one_machine=situation.parallel_slots is not None)
    current = situation.current
    total = sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units)
    one_machine = situation.parallel_slots is not None
    inputs = PlanInputs(
        units=_as_computed(profile, situation),
        micro_batch_size=profile.micro_batch_size,
        num_microbatches=job.training.num_microbatches,
        reduction_leaves=job.training.reduction_leaves,
        freeze_point=situation.freeze_point,
        members=tuple(_member(worker, profile.device, total, current, one_machine) for worker in situation.workers),
        link=measured_link(situation.workers) or LinkProfile(),
        near_link=median_link([worker.near_link for worker in situation.workers]),
        cache=measured_cache(situation.workers, same_boundary=situation.freeze_point == situation.cached_point),
        cache_available=elastic.cache and not situation.uncacheable and situation.cache_reachable,
        cache_shared=situation.cache_shared,
        uncacheable=situation.uncacheable,
        cache_use=job.cache.use,
        tied=situation.tied,
        elastic=elastic,
        placement=section,
        current=current,
        start_pp_degree=situation.start.get("pp"),
        start_dp_degree=situation.start.get("dp"),
        steps_left=situation.steps_left,
        parallel_slots=situation.parallel_slots,
        train_samples=situation.train_samples,
        boundary_bytes_per_sample=situation.boundary_bytes_per_sample,
        optimizer_seconds_per_byte=profile.optimizer_seconds_per_byte or situation.optimizer_seconds_per_byte,
        base_bytes=_communicator_bytes(job, situation),
        never_learnt=min(situation.never_learnt, situation.freeze_point),
        quota=quota_of(job, profile.quota_period_seconds),
        cached_point=situation.cached_point,
        cache_coverage=situation.cache_coverage,
    )
    return with_numerics_of(job, inputs)


def _communicator_bytes(job: Job, situation: Situation) -> int:
    """Return the bytes of memory set aside for communicators where the workers would use NCCL; 0 for another backend."""
    backend, _ = choose_backend(job.placement.backend, [worker.device for worker in situation.workers])
    wanted = [(job.most_tp_degree, job.most_tp_depth)]
    if situation.pinned is not None:
        pinned = Mesh.of(situation.pinned.degrees)
        wanted.append((pinned.degree("tp"), pinned.degree("tp_depth")))
    workers = len(situation.workers)
    return max(most_communicator_bytes(workers, *degrees) for degrees in wanted) if backend == NCCL else 0


def _as_computed(profile: WorkerProfile, situation: Situation) -> tuple[UnitProfile, ...]:
    """Return the units' costs, with the forward seconds of frozen units scaled to the run's prefix tile."""
    return tuple(
        unit.model_copy(update={"forward_seconds": unit.forward_seconds * situation.prefix_cost})
        if number < situation.freeze_point
        else unit
        for number, unit in enumerate(profile.units)
    )


def _member(worker: Worker, device: str, total_seconds: float, current: Placement | None, one_machine: bool) -> MemberInfo:
    """Return the planner's record of a worker, with its speed relative to the reference profile.

    The speed differs from 1 only for another kind of device, or where a member has lastingly computed more slowly than its peers.
    Any other measured difference is noise; so is lasting slowness on one machine, where all workers share the cores.

    Args:
        worker: the worker.
        device, total_seconds: name of the device and seconds of all units, of the reference profile.
        current: the placement in force; None: there is none.
        one_machine: whether all workers are on one machine.
    """
    speed = 1.0
    if worker.lasting_slowness > 1 and not one_machine:
        speed = 1.0 / worker.lasting_slowness
    elif worker.profile.device != device and worker.profile.total_seconds > 0:
        speed = total_seconds / worker.profile.total_seconds
    place = current.global_ranks.get(worker.worker_id, -1) if current else -1
    machine = worker.device.host if worker.device is not None else ""
    return MemberInfo(worker.worker_id, worker.failure_domain, worker.profile.memory_bytes, place, speed or 1.0, machine)
