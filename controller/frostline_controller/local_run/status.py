"""The status of a run: one JSON form for a running and for a finished run, which `frostline status` prints."""

from pathlib import Path
from typing import Any

from frostline_contract.mesh import in_words, with_degrees
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_contract.worker_state import RANKED, WorkerState
from frostline_controller.ledger import words
from frostline_controller.ledger.carried import Carried, most_resident, usage_lines
from frostline_controller.ledger.sums import Ledger
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.errors import NoRun
from frostline_controller.report.data import RunData, read_run
from frostline_controller.report.metrics import main_first, main_metric
from frostline_controller.report.tables import duration
from frostline_proto.v1.control_pb2 import MemoryUse, StatusResponse, WorkerStatus

SHOWN_SLOW = 1.3
"""Slowness below which a worker is not shown as slow: smaller values are noise."""


def read_status(folder: Path, client: OperatorClient) -> tuple[dict[str, Any], bool]:
    """(status, reachable): from the controller where it answers, else from the files that it left."""
    try:
        return from_response(client.status()), True
    except NoRun as error:
        return from_files(folder, str(error)), False


def from_response(response: StatusResponse) -> dict[str, Any]:
    """Return the documented status of a running run."""
    placement = response.placement
    return {
        "name": response.name,
        "state": response.state,
        "step": response.step,
        "total_steps": response.total_steps,
        "epoch": response.epoch,
        "lineage": response.lineage,
        "run_epoch": response.run_epoch,
        "uncovered_units": list(response.uncovered_units),
        "numerics_reason": response.numerics_reason,
        "prefix_tile": response.prefix_tile,
        "prefix_tile_reason": response.prefix_tile_reason,
        "backend": response.backend,
        "planned_memory_bytes": placement.predicted_peak_bytes,
        "quarantined": [{"node": one.node, "uuid": one.uuid, "failures": one.failures} for one in response.quarantined],
        "generation": f"{response.generation.incarnation}.{response.generation.counter}",
        "freeze_point": response.freeze_point,
        "num_units": response.num_units,
        "shape": _shape(placement),
        "loss": response.loss if response.step else None,
        "metrics": main_first(dict(response.metrics), main_metric(response.metrics, {}, {})),
        "samples_per_second": response.samples_per_second,
        "cache_hit_fraction": response.cache_hit_fraction,
        "seconds_left": response.seconds_left if response.seconds_left >= 0 else None,
        "message": response.message,
        "memory_over_cap": response.memory_over_cap,
        "ledger": Ledger.of_message(response.ledger).as_json(),
        "carried_bytes": dict(response.carried_bytes),
        "controller": {"incarnation": response.incarnation, "resident_bytes": response.resident_bytes},
        "workers": [
            {
                "worker_id": worker.worker_id,
                "pod_name": worker.pod_name,
                "process_id": worker.process_id or None,
                "state": worker.state,
                "global_rank": _member(worker.global_rank, worker.state),
                "pp_rank": _member(worker.pp_rank, worker.state),
                "dp_rank": _member(worker.dp_rank, worker.state),
                "stages": list(worker.stages),
                "units": list(worker.units),
                "keeps": list(worker.keeps),
                "heartbeat_age_seconds": worker.heartbeat_age_seconds,
                "step": worker.step,
                "phase": worker.phase,
                "resident_bytes": worker.resident_bytes,
                "step_parts": dict(worker.step_parts),
                "slowness": worker.slowness or None,
                "device": {"name": worker.device.name, "uuid": worker.device.uuid, "host": worker.device.host},
                "memory": _memory_of(worker),
                "usage": _usage_of(worker),
            }
            for worker in response.workers
        ],
    }


def _memory_of(worker: WorkerStatus) -> dict[str, int] | None:
    """Return the worker's measured memory by name; None where it has not reported any."""
    names = [field.name for field in MemoryUse.DESCRIPTOR.fields]
    return {name: getattr(worker.memory, name) for name in names} if worker.HasField("memory") else None


def _usage_of(worker: WorkerStatus) -> dict[str, dict[str, int]] | None:
    """Return the worker's sent and received bytes of the last interval and its resident bytes; None where it has not reported
    any."""
    reported = {name: dict(getattr(worker.usage, name)) for name in ("sent", "received", "resident")}
    return reported if worker.HasField("usage") else None


def from_files(folder: Path, why: str) -> dict[str, Any]:
    """Return the same status from a run directory alone: of a finished run, or the last known one of an unreachable run.

    The workers are those of status.json, which `frostline run` leaves behind, else those of the last plan; none of them runs any
    more.
    """
    run = read_run(folder)
    last_seen = RunDirectory(folder).read_status()
    if "shape" in last_seen:
        last_seen["shape"] = with_degrees(last_seen["shape"])
    ended = run.result.get("status")
    status = {**_empty(run), **last_seen}
    if run.records:
        last = run.records[-1]
        status |= {
            "step": last.step,
            "lineage": last.lineage,
            "generation": last.generation,
            "freeze_point": last.freeze_point,
            "loss": last.loss,
            "samples_per_second": last.samples_per_second,
        }
    status["state"] = ended or "unreachable"
    wrong = next((event.reason for event in reversed(run.events) if event.kind == "wrong_bits"), "")
    reported = (str(run.result.get("message", "")) if ended else why, f"wrong bits: {wrong}" if wrong else "")
    status["message"] = "; ".join(text for text in reported if text)
    status["seconds_left"] = 0.0 if ended == RunStatus.COMPLETED else None
    status["metrics"] = run.final or status["metrics"]
    status["ledger"] = run.ledger.as_json() if run.ledger is not None else status["ledger"]
    carried = Carried((*run.lost_records, *run.records))
    status["carried_bytes"] = dict(carried.sent)
    for worker in status["workers"]:
        reported = carried.newest.get(worker["worker_id"])
        worker["usage"] = reported.model_dump(exclude={"worker_id"}) if reported is not None else None
    status["workers"] = [{**worker, "state": WorkerState.GONE, "heartbeat_age_seconds": None} for worker in status["workers"]]
    return status


def status_text(status: dict[str, Any]) -> str:
    """Return the status as text for people."""
    shape = status["shape"]
    lines = [
        f"{status['name']}: {status['state']}" + (f" ({status['message']})" if status["message"] else ""),
        f"step {status['step']} of {status['total_steps'] or '?'}, generation {status['generation'] or '-'}, "
        f"freeze point {status['freeze_point']} of {status['num_units']} units, "
        f"shape {in_words(shape['degrees'])} ({shape['schedule']})"
        if shape["degrees"]
        else "no shape yet",
    ]
    readings = {"loss": status["loss"], **status["metrics"]}
    known = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in readings.items() if value is not None]
    if status["seconds_left"]:
        known.append(f"{duration(status['seconds_left'])} left")
    lines += [", ".join(known)] if known else []
    if uncovered := status.get("uncovered_units"):
        lines.append(f"one node's end would take units {', '.join(map(str, uncovered))}: nobody on another node keeps a copy")
    lines += [f"numerics: {reason}"] if (reason := status.get("numerics_reason")) else []
    if reason := status.get("prefix_tile_reason"):
        lines.append(f"frozen layers compute one {status['prefix_tile'].replace('_', '-')} at a time: {reason}")
    if status.get("backend") == "nccl":
        lines.append("activations and gradients travel over NCCL")
    lines += _memory_lines(status)
    if over := status.get("memory_over_cap"):
        lines.append(f"memory: {over}")
    if reported := status.get("ledger"):
        lines += words.lines(Ledger.of_json(reported))
    resident = most_resident(worker["usage"]["resident"] for worker in status["workers"] if worker.get("usage"))
    lines += usage_lines(status.get("carried_bytes") or {}, resident)
    for gone in status.get("quarantined") or []:
        lines.append(f"not used any more: GPU {gone['uuid']} of node {gone['node']}, which failed {gone['failures']} times")
    if status["workers"]:
        lines.append(f"{'worker':<34}{'process':>9}  {'state':<9}{'stages':<8}{'dp':<4}{'units+kept':<12}{'heartbeat':<11}phase")
    for worker in status["workers"]:
        age = worker["heartbeat_age_seconds"]
        units = f"{worker['units'][0]}-{worker['units'][-1]}" if worker["units"] else "-"
        kept = worker.get("keeps") or []
        units += f" +{kept[0]}-{kept[-1]}" if kept else ""
        stages = ",".join(map(str, worker["stages"])) or "-"
        dp_rank = "-" if worker["dp_rank"] is None else worker["dp_rank"]
        lines.append(
            f"{worker['pod_name'] or '-':<14} {worker['worker_id'][-18:]:<19}{worker['process_id'] or '-':>9}  "
            f"{worker['state']:<9}{stages:<8}{dp_rank:<4}{units:<12}{'-' if age is None else f'{age:.1f} s':<11}{worker['phase']}"
            f"{_slow(worker)}"
        )
    return "\n".join(lines)


def _memory_lines(status: dict[str, Any]) -> list[str]:
    """Return the measured memory of the fullest worker beside the planned one."""
    reported = [(worker["memory"]["peak_bytes"] + worker["memory"]["communicator_bytes"], worker)
            for worker in status["workers"] if worker.get("memory") and worker["state"] == WorkerState.MEMBER]  # fmt: skip
    planned = status.get("planned_memory_bytes") or 0
    if not reported or not planned:
        return []
    taken, fullest = max(reported, key=lambda one: one[0])
    whose = "" if fullest["device"]["uuid"] else ", which is a CPU's whole process with interpreter, libraries and data"
    counted = max((worker["memory"].get("tensor_bytes", 0) for _, worker in reported), default=0) if whose else 0
    whose += f"; its tensors at most {counted:,}" if counted else ""
    return [f"memory: planned at most {planned:,} bytes a worker, measured {taken:,} at {fullest['worker_id']}{whose}"]


def _slow(worker: dict[str, Any]) -> str:
    slowness = worker.get("slowness") or 1.0
    return f", {slowness:.1f} times as slow as its peers" if slowness > SHOWN_SLOW else ""


def _empty(run: RunData) -> dict[str, Any]:
    placement = run.plans[-1].plan.placement if run.plans else None
    training = run.job.get("training", {})
    workers = []
    for global_rank, worker_id in enumerate(placement.workers if placement else ()):
        shape = placement.shape
        pp_rank = shape.pp_rank(global_rank)
        workers.append({
            "worker_id": worker_id, "pod_name": "", "process_id": None, "state": WorkerState.GONE, "global_rank": global_rank,
            "pp_rank": pp_rank, "dp_rank": shape.dp_rank(global_rank), "stages": shape.stages_of(pp_rank),
            "units": placement.units_of(worker_id), "keeps": [], "heartbeat_age_seconds": None, "step": 0, "phase": "",
            "resident_bytes": 0, "step_parts": {}, "slowness": None, "device": {"name": "", "uuid": "", "host": ""},
            "memory": None, "usage": None,
        })  # fmt: skip
    return {
        "name": run.name, "state": "", "step": 0, "total_steps": training.get("steps") or 0, "epoch": 0.0, "lineage": 0,
        "run_epoch": 0, "uncovered_units": [], "numerics_reason": "",
        "prefix_tile": "", "prefix_tile_reason": "", "backend": "", "quarantined": [],
        "planned_memory_bytes": placement.predicted_peak_bytes if placement else 0,
        "generation": "", "freeze_point": 0, "num_units": run.num_units, "shape": _shape(placement), "loss": None, "metrics": {},
        "samples_per_second": 0.0, "cache_hit_fraction": 0.0, "seconds_left": None, "message": "",
        "memory_over_cap": "", "ledger": None, "carried_bytes": {},
        "controller": {"incarnation": 0, "resident_bytes": 0}, "workers": workers,
    }  # fmt: skip


def _shape(placement: Any) -> dict[str, Any]:
    """Return the shape of a placement, given as contract record or as message; zeros where there is none yet."""
    names = ("virtual_stages", "schedule", "use_cache")
    empty = {"degrees": {}, "virtual_stages": 0, "schedule": "", "use_cache": False, "stage_bounds": []}
    if placement is None:
        return empty
    values = {name: getattr(placement, name) for name in names}
    return {"degrees": dict(placement.degrees), **values, "stage_bounds": list(placement.stage_bounds)}


def _member(value: int, state: str) -> int | None:
    """Return a rank, or None for a worker without one: proto3 cannot omit a 0, so the worker's state decides as well."""
    return value if value >= 0 and state in RANKED else None
