"""The run's status for people: the answer of the Status RPC, and the progress annotation."""

from collections import Counter
from typing import Any

import psutil

from frostline_contract.mesh import in_words
from frostline_contract.plain_json import plain_json
from frostline_contract.plan import Plan
from frostline_contract.run_status import RunStatus
from frostline_contract.worker_state import WorkerState
from frostline_controller.ledger.carried import Carried
from frostline_controller.ledger.keeping import ledger_of
from frostline_controller.members.membership import GONE, LEAVING, Worker
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.memory_cap import over_cap
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message

WORKERS_SHOWN_GONE = 16


def status_of(facts: RunFacts, store: RunStore, with_workers: bool = True) -> pb.StatusResponse:
    """The answer of the Status RPC; its list of workers only where `with_workers`."""
    plan, latest, identity = facts.current, store.records.latest, facts.identity
    now = facts.clock()
    seen = (latest.cache_hits + latest.cache_misses) if latest else 0
    response = pb.StatusResponse(
        name=facts.job.name,
        state=facts.state.state,
        step=facts.step,
        total_steps=facts.total_steps,
        freeze_point=facts.freeze_point(),
        num_units=identity.num_units if identity else 0,
        workers=[_worker_status(facts, store.records.carried, worker, now) for worker in _shown(facts)] if with_workers else [],
        loss=latest.loss if latest else 0.0,
        metrics=_metrics(store),
        samples_per_second=latest.samples_per_second if latest else 0.0,
        cache_hit_fraction=latest.cache_hits / seen if latest and seen else 0.0,
        seconds_left=_seconds_left(facts, store),
        message=_message(facts, store),
        lineage=facts.state.lineage,
        epoch=facts.step / identity.steps_per_epoch if identity and identity.steps_per_epoch else 0.0,
        incarnation=facts.state.incarnation,
        resident_bytes=psutil.Process().memory_info().rss,
        memory_over_cap=over_cap(facts),
        carried_bytes=store.records.carried.sent,
    )
    response.quarantined.extend(
        pb.QuarantinedDevice(node=one.node, uuid=one.uuid, failures=one.failures) for one in facts.quarantined
    )
    if facts.state.settled is not None:
        response.numerics_reason = facts.state.settled.reason
    response.ledger.CopyFrom(ledger_of(facts, store).message())
    if identity is not None:
        response.prefix_tile, response.prefix_tile_reason = identity.prefix_tile, identity.prefix_tile_reason
    if plan is not None:
        response.run_epoch, response.backend = plan.run_epoch, plan.backend
        response.uncovered_units.extend(_uncovered(facts, plan))
        response.generation.CopyFrom(to_message(plan.generation, plan_pb2.GenerationId))
        response.placement.CopyFrom(to_message(plan.placement, plan_pb2.Placement))
    return response


def progress_text(facts: RunFacts, store: RunStore) -> str:
    """The progress annotation: small JSON for people."""
    plan, latest = facts.current, store.records.latest
    values: dict[str, Any] = {
        "state": facts.state.state,
        "step": facts.step,
        "total_steps": facts.total_steps,
        "generation": str(plan.generation) if plan else "",
        "freeze_point": facts.freeze_point(),
        "shape": in_words(plan.placement.degrees) if plan else "",
        "backend": plan.backend if plan else "",
        "loss": round(latest.loss, 6) if latest else None,
        "message": _message(facts, store),
    }
    return plain_json(values)


def _message(facts: RunFacts, store: RunStore) -> str:
    """Why the run waits or how it ended, then problems that somebody has to mend."""
    unsaved = "" if facts.ended else store.events.unsaved
    wrong = f"wrong bits: {facts.wrong_bits}" if facts.wrong_bits else ""
    reported = (facts.message or facts.state.message, unsaved, facts.trouble, facts.cache_off, wrong)
    return "; ".join(text for text in reported if text)


def _shown(facts: RunFacts) -> list[Worker]:
    gone = [worker for worker in facts.members if worker.presence == GONE]
    return [worker for worker in facts.members if worker.presence != GONE] + gone[-WORKERS_SHOWN_GONE:]


def _worker_status(facts: RunFacts, carried: Carried, worker: Worker, now: float) -> pb.WorkerStatus:
    placement = facts.current.placement if facts.current else None
    member, usage = _is_member(facts, worker), carried.newest.get(worker.worker_id)
    status = pb.WorkerStatus(
        worker_id=worker.worker_id,
        pod_name=worker.pod_name,
        process_id=worker.process_id,
        state=_state(facts, worker, member),
        pp_rank=-1,
        dp_rank=-1,
        global_rank=-1,
        heartbeat_age_seconds=max(0.0, now - worker.last_received),
        step=worker.step,
        phase=worker.phase,
        resident_bytes=worker.resident_bytes,
        step_parts=worker.step_parts,
        slowness=worker.slowness,
        device=to_message(worker.device, plan_pb2.DeviceFacts) if worker.device is not None else None,
        memory=worker.memory,
        usage=to_message(usage, plan_pb2.WorkerUsage) if usage is not None else None,
    )
    if member and placement is not None:
        global_rank = placement.global_ranks[worker.worker_id]
        status.global_rank = global_rank
        status.pp_rank = placement.shape.pp_rank(global_rank)
        status.dp_rank = placement.shape.dp_rank(global_rank)
        status.stages.extend(placement.shape.stages_of(status.pp_rank))
        status.units.extend(placement.units_of(worker.worker_id))
        current = facts.current
        status.keeps.extend(current.pieces.units_of(current.replicas_kept_by(worker.worker_id)) if current else [])
    return status


def workers_by_state(facts: RunFacts) -> Counter[str]:
    """The number of workers in each state, among those that `status_of` shows."""
    return Counter(_state(facts, worker, _is_member(facts, worker)) for worker in _shown(facts))


def _is_member(facts: RunFacts, worker: Worker) -> bool:
    return facts.current is not None and worker.worker_id in facts.current.placement.global_ranks and worker.presence != GONE


def _uncovered(facts: RunFacts, plan: Plan) -> list[int]:
    """Units with an uncovered piece, as of the newest vote that a heartbeat reported; before the first vote, as of the plan."""
    reported = [
        worker
        for worker_id in plan.placement.workers
        if (worker := facts.members.get(worker_id)) is not None and worker.generation == plan.generation
    ]
    newest = max(reported, key=lambda worker: worker.step, default=None)
    voted = newest is not None and newest.step > max(plan.start_step, 0)
    return plan.pieces.units_of(newest.uncovered_pieces if newest is not None and voted else plan.uncovered)


def _state(facts: RunFacts, worker: Worker, member: bool) -> WorkerState:
    if worker.presence == GONE:
        return GONE
    if worker.presence == LEAVING:
        return LEAVING
    if member:
        return WorkerState.MEMBER
    prepared = facts.state.prepared
    joining = facts.current is None or (prepared is not None and worker.worker_id in prepared.places)
    return WorkerState.JOINING if joining else WorkerState.SPARE


def _metrics(store: RunStore) -> dict[str, float]:
    """The metrics of the newest guard reading; the newest evaluation's where there is none."""
    for one in reversed(store.statistics.all):
        if one.guard is not None:
            return dict(one.guard.metrics)
    return dict(store.records.latest.evaluation) if store.records.latest else {}


def _seconds_left(facts: RunFacts, store: RunStore) -> float:
    latest = store.records.latest
    if latest is None or latest.step_seconds <= 0 or facts.state.state != RunStatus.RUNNING:
        return -1.0
    return max(0, facts.total_steps - facts.step) * latest.step_seconds
