"""Messages that leave the controller: plans and notices to workers, events to the run directory and to the cluster."""

import asyncio
import logging
import math
from typing import Any

from frostline_contract.plan import Decision, GenerationId, Plan
from frostline_controller.cluster.backend import ClusterBackend
from frostline_controller.decisions.surviving import due_in
from frostline_controller.run.events import KINDS, event_line
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore
from frostline_controller.serving.streams import Streams
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message

log = logging.getLogger(__name__)

WARNINGS = frozenset(("failure", "hang", "checkpoint_failed", "decision_void", "cannot_start", "wrong_bits", "quarantine",
                      "out_of_memory", "memory_over_cap", "pause"))  # fmt: skip
"""Kinds of events that may need action by a person."""


class Outbox:
    """Streams to workers, and events.

    The reconciler's task sends plans and decisions after it has made them durable. RPC handlers open and close streams, and pass
    on the events of workers.

    Attributes:
        streams: one for each connected worker.
        unannounced: lines of plans.jsonl about a current plan that is durable but not yet announced.
    """

    def __init__(self, facts: RunFacts, store: RunStore, backend: ClusterBackend) -> None:
        self._facts, self._store, self._backend = facts, store, backend
        self.streams = Streams()
        self.unannounced: list[dict[str, object]] = []
        self._noted: list[pb.RunEvent] = []
        self._plan_messages: dict[GenerationId, tuple[Plan, tuple[Decision, ...], bytes]] = {}

    def plan_message(self, plan: Plan) -> bytes:
        """The message of a plan for all workers, serialized. It is kept until the plan or its decisions change."""
        decisions = self._store.state.decisions
        known = self._plan_messages.get(plan.generation)
        if known is not None and known[0] is plan and known[1] is decisions:
            return known[2]
        step = plan.start_step if plan.start_step >= 0 else self._facts.step
        due = due_in(plan.lineage, self._facts.surviving(), step)
        wire = to_message(plan.model_copy(update={"decisions": (*decisions, *due)}), plan_pb2.Plan)
        message = pb.WatchPlanResponse(plan=wire).SerializeToString()
        live = {one.generation for one in self._facts.live_plans}
        self._plan_messages = {name: kept for name, kept in self._plan_messages.items() if name in live}
        self._plan_messages[plan.generation] = (plan, decisions, message)
        return message

    async def event(self, kind: str, reason: str, seconds: float = 0.0, **fields: Any) -> None:
        """Write an event of the run, and pass it to the cluster. Never fails: a line that cannot be written now is written later.

        Args:
            kind: one of `events.KINDS`.
            reason: what happened and why, in words.
            seconds: how long the event took.
            fields: further fields of the line in events.jsonl; they also replace the fields that every line has.
        """
        line = self._line(kind, reason, seconds, **fields)
        await self._store.events.keep(line)
        await self._send_to_cluster(line)

    def note(self, event: pb.RunEvent) -> None:
        """Keep an event of an RPC call, which must not write by itself, for the reconciler."""
        self._noted.append(event)
        self._facts.wake.set()

    async def send_noted(self) -> None:
        """Write the events that RPC calls have noted. Raises OSError; the remaining ones are kept for the next round."""
        while self._noted:
            await self.worker_event(self._noted[0])
            del self._noted[0]

    async def worker_event(self, event: pb.RunEvent) -> bool:
        """Write a worker's event, once, though the worker repeats it until it is acknowledged.

        An event of an unknown kind, from a newer worker, is only logged.

        Returns:
            Whether the event is new.

        Raises:
            OSError: the event cannot be written, so it must not be acknowledged.
        """
        if event.kind not in KINDS:
            log.warning("event of an unknown kind=%r step=%s reason=%r", event.kind, event.step, event.reason)
            return False
        detail = {"detail": dict(event.detail)} if event.detail else {}
        line = self._line(event.kind, event.reason, event.seconds, step=event.step, lineage=event.lineage, **detail)
        if not await self._store.events.add_once(line):
            return False
        await self._send_to_cluster(line)
        return True

    def _line(self, kind: str, reason: str, seconds: float, **fields: Any) -> dict[str, Any]:
        """A line of events.jsonl, with the run's step, generation, freeze point and shape."""
        facts, state, plan = self._facts, self._store.state, self._facts.current
        values = {
            "step": facts.step,
            "lineage": state.lineage,
            "generation": str(plan.generation) if plan else "",
            "freeze_point": facts.freeze_point(),
            "degrees": plan.placement.degrees if plan else {},
            "num_microbatches": facts.job.training.num_microbatches,
            "reason": reason,
            **fields,
        }
        return event_line(kind, state.started_at, seconds if math.isfinite(seconds) else 0.0, **values)

    async def _send_to_cluster(self, line: dict[str, Any]) -> None:
        """Emit a Kubernetes Event. One that the cluster refuses is only logged: the run's events are in its directory."""
        kind, reason = line["kind"], line["reason"]
        log.info("event kind=%s step=%s generation=%s reason=%r", kind, line["step"], line["generation"], reason)
        severity = "Warning" if kind in WARNINGS else "Normal"
        try:
            await asyncio.to_thread(self._backend.emit_event, severity, kind.title().replace("_", ""), reason)
        except OSError as error:
            log.warning("the cluster has not taken an event kind=%s error=%s", kind, error)
