"""GPUs that failed, and plans that needed too much memory: the records by which the run avoids both from then on.

A worker whose device fails ends with a special exit code (frostline_contract/exit_codes.py), and is started again on the same
GPU. The second failure of a GPU in a run puts it in quarantine. A plan that runs out of memory needs more than the planner
predicts.
"""

import logging

from frostline_contract.exit_codes import DEVICE
from frostline_controller.run.durable import FailedDevice
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

REMEDY = (
    "lower training.micro_batch_size, set training.activation_checkpointing (and training.loss_chunk_tokens with a large "
    "vocabulary), or use more workers or GPUs with more memory"
)


class Devices:
    """The run's record of failed GPUs and of memory shortages; it becomes durable with the next write."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        details = [line["detail"] for line in store.events.all() if line["kind"] == "quarantine"]
        self._announced = {(one["node"], one["uuid"]) for one in details}
        self._counted: set[str] = set()
        self._short: set[tuple[str, int, int]] = set()
        self._shortages: list[tuple[str, dict[str, object]]] = []

    def note_end(self, request: pb.LeaveRequest) -> None:
        """Record the end of a worker's process, as reported by the process that reaped it; repeated reports count once."""
        node, uuid = request.node, request.device_uuid
        if request.exit_code != DEVICE or not uuid or request.worker_id in self._counted:
            return
        self._counted.add(request.worker_id)
        known = {(one.node, one.uuid): one for one in self._store.amendments.failed_devices}
        failures = known[node, uuid].failures + 1 if (node, uuid) in known else 1
        known[node, uuid] = FailedDevice(node=node, uuid=uuid, failures=failures)
        self._store.amendments.failed_devices = tuple(known.values())
        log.warning("device failed node=%s uuid=%s failures=%s", node, uuid, failures)
        self._facts.wake.set()

    def note_shortage(self, request: pb.ReportRecoveryRequest) -> None:
        """Record that a member of the running plan had too little memory: no plan with a predicted need as large is made again.

        The member repeats this in each later report until a plan has answered it; it is recorded once.
        """
        facts, store, plan = self._facts, self._store, self._facts.current
        ran = request.ran
        if plan is None or (ran.incarnation, ran.counter) != (plan.generation.incarnation, plan.generation.counter):
            return
        said = (request.worker_id, ran.incarnation, ran.counter)
        if said in self._short:
            return
        self._short.add(said)
        planned, shortage = plan.placement.predicted_peak_bytes, request.memory_shortage
        if planned:
            store.amendments.memory_limit_bytes = min(facts.memory_limit_bytes or planned, planned - 1)
        name = facts.members.name_of(request.worker_id)
        self._shortages.append((
            f"{name} ran out of memory: planned {planned:,} bytes for the fullest worker, measured "
            f"{shortage.peak_bytes:,} of the device's {shortage.limit_bytes:,}; no plan that needs as much is made again",
            {"worker": request.worker_id, "planned_bytes": planned, "peak_bytes": shortage.peak_bytes,
             "limit_bytes": shortage.limit_bytes},
        ))  # fmt: skip
        facts.wake.set()

    async def advance(self) -> None:
        """Write events for GPUs that are newly in quarantine, and for shortages. Called once in each round."""
        facts, store, outbox = self._facts, self._store, self._outbox
        for one in facts.quarantined:
            if (one.node, one.uuid) not in self._announced:
                await store.commit()
                self._announced.add((one.node, one.uuid))
                reason = f"GPU {one.uuid} of node {one.node} failed {one.failures} times and is not used any more in this run"
                await outbox.event("quarantine", reason, detail=one.model_dump())
        while self._shortages:
            reason, detail = self._shortages.pop(0)
            await outbox.event("out_of_memory", reason, detail=detail)


def no_placement(facts: RunFacts, workers: int, wanted: int, refusal: ValueError) -> str:
    """Return the message of a run that waits because no placement fits.

    Args:
        facts: the run's facts.
        workers: number of workers that a plan may name.
        wanted: number of workers that the run wants.
        refusal: the planner's.

    Raises:
        ValueError: memory is the reason, and no more workers are expected.
    """
    if facts.memory_limit_bytes and workers >= wanted:
        raise ValueError(f"out of memory, and no other plan needs less: {refusal}; {REMEDY}") from refusal
    return f"after a failure: no placement for {workers} workers: {refusal}"
