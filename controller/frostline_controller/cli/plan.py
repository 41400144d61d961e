"""`frostline plan`: what the planner would do with a job, printed without a cluster."""

import argparse
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frostline_contract.job import Job, JobError, load_job
from frostline_contract.mesh import in_words
from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_controller.cli import exit_codes
from frostline_controller.cli.errors import UserMistake
from frostline_controller.cli.model_size import ModelSize, model_size
from frostline_controller.measured import MeasuredProfile
from frostline_controller.planner.advice import Advice, advise
from frostline_controller.planner.analytic import analytic_profiles
from frostline_controller.planner.describe import as_json, describe
from frostline_controller.planner.inputs import MemberInfo, PlanInputs, parallel_slots
from frostline_controller.planner.search import PlannedPlacement, make_plan

BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "mixed_bfloat16": 4}
DEFAULT_STEPS = 1000
"""Steps of a run whose data set is not here to be counted; it only weighs what a reshape costs."""


@dataclass(frozen=True)
class Hardware:
    """What a plan assumes of a device where nothing was measured."""

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
"""Sustained matrix throughput, links, call overhead and optimizer (which moves about seven values a weight, at memory speed)
of a core over loopback, and of a current data-centre GPU on NVLink."""


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan for each number of devices: text, or one JSON object with --json."""
    try:
        job = load_job(arguments.file, arguments.overrides)
    except JobError as error:
        raise UserMistake(str(error)) from None
    size = model_size(job)
    hardware = choose_hardware(job, arguments)
    measured = _measured_profile(arguments.profile) if arguments.profile else None
    plans = []
    for devices in arguments.devices or [job.placement.workers]:
        inputs = plan_inputs(job, size, hardware, devices, arguments.freeze_point, measured)
        plans.append((devices, inputs, make_plan(inputs), walk(inputs)))
    advice = micro_batch_advice(job, size, hardware, plans[0][1], measured)
    if arguments.json:
        print(json.dumps(_json(job, size, hardware, measured, plans, advice), allow_nan=False))
        return exit_codes.DONE
    print(_assumptions(job, size, hardware, measured))
    for devices, inputs, planned, steps in plans:
        print(f"\n{devices} device{'s' if devices != 1 else ''}: {describe(planned, inputs)}\n")
        print("\n".join(_walk_lines(steps)))
    print(f"\n{advice.reason}" + _advice_caveat(job, advice))
    return exit_codes.DONE


def choose_hardware(job: Job, arguments: argparse.Namespace) -> Hardware:
    """GPUs where the job or --devices speaks of a cluster, this machine's cores otherwise; --teraflops corrects it."""
    wanted = arguments.hardware
    if wanted is None:
        wanted = "gpu" if job.training.device == "cuda" or (arguments.devices and job.training.device == "auto") else "cpu"
    hardware = GPU if wanted == "gpu" else CPU
    return replace(hardware, teraflops=arguments.teraflops) if arguments.teraflops else hardware


def plan_inputs(
    job: Job, size: ModelSize, hardware: Hardware, devices: int, freeze_point: int, measured: MeasuredProfile | None
) -> PlanInputs:
    """The planner's inputs for `devices` equal workers. Raises UserMistake for a freeze point outside the model."""
    units = measured.units if measured else unit_profiles(job, size, hardware, job.training.micro_batch_size)
    if not 0 <= freeze_point < len(units):
        raise UserMistake(f"--freeze-point is {freeze_point}; it must be 0 to {len(units) - 1}, since the head always learns")
    memory = job.placement.worker_memory_bytes or 0
    # Locally the workers share this machine's cores, and a plan that forgot it would promise a speed-up that cannot be.
    local = hardware.name == "cpu"
    return PlanInputs(
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
        # With nothing frozen it is the run's first plan; with a freeze point the run started earlier, at the job's depth.
        start_pp_degree=job.placement.initial_pp_degree if freeze_point else None,
        steps_left=job.training.steps or DEFAULT_STEPS,
        parallel_slots=parallel_slots(job, os.cpu_count() or 1) if local else None,
        samples_per_step=job.training.batch_size,
        boundary_bytes_per_sample=size.sequence * size.hidden * BYTES[job.training.precision],
        batch=job.training.batch,
        exact_numerics=job.training.numerics == "exact",
        optimizer_seconds_per_byte=hardware.optimizer_seconds_per_byte,
    )


def unit_profiles(job: Job, size: ModelSize, hardware: Hardware, micro_batch_size: int) -> tuple[UnitProfile, ...]:
    """Analytic unit costs at a micro-batch size."""
    return analytic_profiles(
        num_blocks=size.num_blocks,
        hidden=size.hidden,
        sequence=size.sequence,
        micro_batch=micro_batch_size,
        flops_per_second=hardware.teraflops * 1e12,
        vocabulary=size.outputs,
        head_positions=size.head_positions,
        embedding_parameters=size.embedding_parameters,
        bytes_per_value=BYTES[job.training.precision],
        moments=2 if job.training.optimizer.name == "adamw" else 1,
        fixed_seconds=hardware.fixed_seconds,
    )


def walk(inputs: PlanInputs) -> list[tuple[int, PlannedPlacement]]:
    """(freeze point, plan) as layers freeze: none, a quarter, half and two thirds of the blocks. The first plan is the start."""
    blocks = inputs.num_units - 2
    points = dict.fromkeys(round(blocks * share) + (share > 0) for share in (0, 0.25, 0.5, 0.67))
    first = make_plan(replace(inputs, freeze_point=0, start_pp_degree=None))
    start = first.placement
    later = replace(inputs, start_pp_degree=start.pp_degree, start_dp_degree=start.dp_degree)
    fitting = [point for point in points if 0 < point < inputs.num_units - 1]
    return [(0, first), *((point, make_plan(replace(later, freeze_point=point))) for point in fitting)]


def micro_batch_advice(
    job: Job, size: ModelSize, hardware: Hardware, inputs: PlanInputs, measured: MeasuredProfile | None
) -> Advice:
    """The micro-batch size with the least predicted step; two analytic sizes, or the measured one, span the prediction."""
    if measured:
        return advise(inputs, job.training.batch_size, {measured.micro_batch_size: measured.units})
    sizes = sorted({1, job.training.micro_batch_size, job.training.batch_size})
    return advise(inputs, job.training.batch_size, {at: unit_profiles(job, size, hardware, at) for at in sizes})


def _measured_profile(path: str) -> MeasuredProfile:
    try:
        return MeasuredProfile.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserMistake(f"--profile {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserMistake(f"--profile {path}: is no UTF-8 text; give a run's profile.json") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserMistake(f"--profile {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _json(job: Job, size: ModelSize, hardware: Hardware, measured: Any, plans: list[Any], advice: Advice) -> dict[str, Any]:
    return {
        "version": 1,
        "job": job.name,
        "model": {**asdict(size), "num_units": size.num_units},
        "assumptions": {
            "unit_profile": "measured" if measured else "analytic",
            "hardware": hardware.name,
            "teraflops": hardware.teraflops,
        },
        "plans": [
            {
                "devices": devices,
                "freeze_point": inputs.freeze_point,
                **as_json(planned),
                "by_freeze_point": [{"freeze_point": point, **_step_json(at)} for point, at in steps],
            }
            for devices, inputs, planned, steps in plans
        ],
        "micro_batch_size": {"advised": advice.best, "job": job.training.micro_batch_size, "reason": advice.reason},
    }


def _step_json(planned: PlannedPlacement) -> dict[str, Any]:
    placement = planned.placement
    shape = {name: getattr(placement, name) for name in ("degrees", "virtual_stages", "schedule", "use_cache")}
    return {**shape, "stage_bounds": list(placement.stage_bounds), "step_seconds": planned.cost.total_seconds}


def _assumptions(job: Job, size: ModelSize, hardware: Hardware, measured: MeasuredProfile | None) -> str:
    source = f"measured on {measured.device}" if measured else f"analytic at {hardware.teraflops:g} TFLOP/s a {hardware.name}"
    return (
        f"{job.name}: {job.model.family}, {size.num_units} units "
        f"(embedding, {size.num_blocks} blocks of width {size.hidden}, head), {size.sequence} tokens a sample\n"
        f"unit times: {source}; batch {job.training.batch_size} in "
        f"{job.training.num_microbatches} micro-batches of {job.training.micro_batch_size}"
    )


def _walk_lines(steps: list[tuple[int, PlannedPlacement]]) -> list[str]:
    first = steps[0][1].cost
    lines = ["as layers freeze:", f"  {'freeze point':<14}{'shape':<15}{'workers':>8}{'cache':>8}{'step':>12}{'speed':>8}"]
    for point, planned in steps:
        placement, cost = planned.placement, planned.cost
        shape = in_words(placement.degrees)
        speed = first.seconds_per_sample / cost.seconds_per_sample
        cached = "yes" if placement.use_cache else "no"
        lines.append(
            f"  {point:<14}{shape:<15}{len(placement.workers):>8}{cached:>8}{_step(cost.total_seconds):>12}{speed:>7.2f}x"
        )
    return lines


def _step(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _advice_caveat(job: Job, advice: Advice) -> str:
    if advice.best == job.training.micro_batch_size:
        return "; the job has it already"
    return f"; try --set training.micro_batch_size={advice.best} (it is a part of the numerics: a new run, not a resumed one)"
