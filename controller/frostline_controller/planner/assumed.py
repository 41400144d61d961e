"""The planner's inputs for a job without a cluster: a device's assumed figures, and a run's measurements where there are any."""

import os
from dataclasses import dataclass, replace

from frostline_contract.communicators import most_communicator_bytes
from frostline_contract.job import Job
from frostline_contract.precision import BYTES, VALUE_TYPES, resolve_precision
from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_controller.planner.adapted import with_adapters
from frostline_controller.planner.advice import units_at
from frostline_controller.planner.analytic import analytic_profiles
from frostline_controller.planner.cell_advice import in_cells
from frostline_controller.planner.inputs import MemberInfo, PlanInputs, parallel_slots, with_numerics_of
from frostline_controller.planner.model_size import ModelSize
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.planner.quota import quota_of

DEFAULT_STEPS = 1000
"""Assumed steps of a run whose samples cannot be counted here; only the weight of a reshape's cost depends on it."""


@dataclass(frozen=True)
class Hardware:
    """The figures that a plan assumes of a device where nothing was measured.

    Attributes:
        name: "cpu" or "gpu".
        teraflops: sustained throughput, in 1e12 FLOPs a second.
        link: between devices.
        fixed_seconds: overhead of each unit's call.
        optimizer_seconds_per_byte: seconds of an update for a byte of weights that learn.
        per_node: devices of a node.
    """

    name: str
    teraflops: float
    link: LinkProfile
    fixed_seconds: float
    optimizer_seconds_per_byte: float
    per_node: int


CPU = Hardware("cpu", 0.02, LinkProfile(), 2e-4, 5e-10, 1)
NVLINK = LinkProfile(
    latency_seconds=2e-5,
    bandwidth_bytes_per_second=2e10,
    reduce_latency_seconds=5e-5,
    reduce_bandwidth_bytes_per_second=2e10,
)
GPU = Hardware("gpu", 60.0, NVLINK, 3e-5, 5e-12, 8)
"""Assumed figures of a core over loopback (CPU) and of a current data-centre GPU on NVLink: sustained matrix throughput, links,
call overhead and optimizer (which moves about seven values a weight, at memory speed)."""


def hardware_for(job: Job, named_devices: bool, wanted: str | None = None, teraflops: float | None = None) -> Hardware:
    """Return the hardware to assume: GPUs where the job or the user names devices of a cluster, else this machine's cores.

    Args:
        job: the job to be planned.
        named_devices: whether the user named numbers of devices.
        wanted: "cpu" or "gpu", in place of the job's device.
        teraflops: sustained throughput of a device; None: that of CPU or GPU above.
    """
    speaks_of_a_cluster = job.training.device == "cuda" or (named_devices and job.training.device == "auto")
    hardware = GPU if (wanted or ("gpu" if speaks_of_a_cluster else "cpu")) == "gpu" else CPU
    return replace(hardware, teraflops=teraflops) if teraflops else hardware


def assumed_inputs(
    job: Job, size: ModelSize, hardware: Hardware, devices: int, freeze_point: int, measured: MeasuredProfile | None
) -> PlanInputs:
    """Return the planner's inputs for equal workers.

    Args:
        job: the job to be planned.
        size: the model's size.
        hardware: the assumed figures of a device.
        devices: number of workers.
        freeze_point: units before it are frozen.
        measured: measurements of a run, used in place of assumed figures; None: there are none.

    Raises:
        ValueError: the freeze point is outside the model.
    """
    micro_batch = job.training.micro_batch_size
    if measured is not None:
        units = units_at({measured.micro_batch_size: measured.units}, micro_batch)
    else:
        units = unit_profiles(job, size, hardware, micro_batch)
    if not 0 <= freeze_point < len(units):
        raise ValueError(f"--freeze-point is {freeze_point}; it must be 0 to {len(units) - 1}, since the head always learns")
    memory, initial = job.placement.worker_memory_bytes or 0, job.initial_freeze_point(len(units))
    update = measured.optimizer_seconds_per_byte if measured else 0.0
    # Local workers share this machine's cores; a plan that ignored that would predict an impossible speed-up.
    local = hardware.name == "cpu"
    inputs = PlanInputs(
        units=units,
        micro_batch_size=job.training.micro_batch_size,
        num_microbatches=job.training.num_microbatches,
        reduction_leaves=job.training.reduction_leaves,
        freeze_point=freeze_point,
        members=tuple(
            MemberInfo(f"worker-{i}", f"node-{i // max(job.placement.workers_per_pod, hardware.per_node)}", memory)
            for i in range(devices)
        ),
        link=(measured.link if measured else None) or hardware.link,
        cache_available=job.elastic.cache and job.data.augmentation.mode != "recompute",
        cache_use=job.cache.use,
        tied=size.tied,
        elastic=job.elastic,
        placement=job.placement,
        # At the freeze point of step 1 this is the run's first plan; beyond it the run has started earlier, at the job's depth.
        start_pp_degree=job.placement.initial_pp_degree if freeze_point > initial else None,
        steps_left=job.training.steps or DEFAULT_STEPS,
        parallel_slots=parallel_slots(job, len(os.sched_getaffinity(0))) if local else None,
        boundary_bytes_per_sample=size.sequence * size.hidden * value_bytes(job, hardware)[1],
        optimizer_seconds_per_byte=update or hardware.optimizer_seconds_per_byte,
        base_bytes=most_communicator_bytes(devices, job.most_tp_degree, job.most_tp_depth)
        if hardware.name == "gpu" and job.placement.backend != "gloo"
        else 0,
        never_learnt=min(freeze_point, initial),
        quota=quota_of(job, measured.quota_period_seconds if measured else 0.0),
    )
    return with_numerics_of(job, inputs)


def value_bytes(job: Job, hardware: Hardware) -> tuple[int, int]:
    """Return the bytes of a weight, and of a value that crosses a cut."""
    types = VALUE_TYPES[resolve_precision(job.training.precision, hardware.name == "gpu")]
    return BYTES[types.weights], BYTES[types.boundary]


def unit_profiles(job: Job, size: ModelSize, hardware: Hardware, micro_batch_size: int) -> tuple[UnitProfile, ...]:
    """Return the analytic unit costs at a micro-batch size."""
    weight_bytes, boundary_bytes = value_bytes(job, hardware)
    units = analytic_profiles(
        num_blocks=size.num_blocks,
        hidden=size.hidden,
        sequence=size.sequence,
        micro_batch=micro_batch_size,
        flops_per_second=hardware.teraflops * 1e12,
        vocabulary=size.outputs,
        head_positions=size.head_positions,
        embedding_parameters=size.embedding_parameters,
        bytes_per_value=boundary_bytes,
        bytes_per_weight=weight_bytes,
        moments=2 if job.training.optimizer.name == "adamw" else 1,
        fixed_seconds=hardware.fixed_seconds,
    )
    return with_adapters(job, size.hidden, in_cells(units, 1, job.training.num_cells, hardware.fixed_seconds))
