"""The two-phase reshape (docs/protocols.md 3): prepare a plan while training goes on, let a vote switch to it, learn the outcome.

At most one plan is prepared at a time. The workers' vote alone decides whether they switch to it. The controller learns the
outcome from Ready(entered), records and heartbeats, also while the run drains, and withdraws plans that are late.
"""

import asyncio
import logging

from frostline_contract.mesh import in_words
from frostline_contract.phases import ControllerPhase
from frostline_contract.plan import CONTINUE, Plan
from frostline_controller.decisions.surviving import in_force
from frostline_controller.members.membership import LEAVING, Worker
from frostline_controller.planner.adapter import Choice
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.planner.plans import switching_plan
from frostline_controller.reshape.preparation import Preparation, open_window
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.plan_log import plan_end_line, plan_line
from frostline_controller.run.plug import RoundPlug
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message

log = logging.getLogger(__name__)

CONTINUED_KEPT = 16
"""Number of generations before the running one whose members may still deliver records and statistics of stable steps."""


class Reshaping:
    """Drives the prepared plan. RPC handlers call the `note_` methods; the reconciler calls the others.

    Args:
        facts, store, outbox, plug: the run's.
        choosing: asks the planner for the next placement.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, plug: RoundPlug, choosing: PlanChoice) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._plug, self._choosing = plug, choosing
        self.preparation: Preparation | None = None
        if facts.state.prepared is not None:
            self.preparation = Preparation(since=facts.clock(), announced=True)

    @property
    def busy(self) -> bool:
        """Whether there is a prepared plan: not yet switched to and not yet dropped."""
        return self._facts.state.prepared is not None

    @property
    def votable(self) -> bool:
        """Whether members may have received the notice that all are ready, perhaps from a predecessor; before it no member votes
        to switch."""
        return self.preparation is None or self.preparation.announced

    def note_ready(self, worker_id: str, request: pb.ReadyRequest) -> None:
        """Note that a participant has prepared the plan, cannot switch to it any more, or has entered it."""
        if self.preparation is None:
            return
        self.preparation.take(worker_id, request)
        if not request.entered and not request.ready:
            log.info("ready taken back worker=%s generation=%s reason=%r", worker_id, _of(request.generation), request.reason)

    async def prepare(self, choice: Choice, not_before: int, cause: str) -> bool:
        """Make a plan durable as the prepared one; `advance` sends it. Returns False where the window is empty.

        The next decision then opens another window.
        """
        facts = self._facts
        base = facts.current
        assert base is not None and not self.busy
        window = open_window(facts, not_before)
        if window.until < window.first:
            return False
        draft = self._choosing.draft(
            choice, lineage=facts.state.lineage, freeze_point=window.freeze_point, decision_number=window.decision_number,
            reason=choice.reason,
        )  # fmt: skip
        steps = (window.first, window.until)
        plan = self._choosing.stamped(await asyncio.to_thread(switching_plan, draft, base=base, window=steps))
        await self._store.commit(prepared=plan, counter=plan.generation.counter)
        self.preparation = Preparation(since=facts.clock(), cause=cause)
        facts.wake.set()  # `advance` sends it
        log.info(
            "plan prepared generation=%s shape=%r freeze_point=%s switch=%s..%s reason=%r",
            plan.generation, in_words(plan.placement.degrees), plan.freeze_point, window.first, window.until, plan.reason,
        )  # fmt: skip
        return True

    async def restore(self) -> None:
        """Write the event of the switch to the current plan, where a predecessor has made the switch durable and died."""
        facts, store, plan = self._facts, self._store, self._facts.current
        if plan is None or plan.base is None or plan.start != CONTINUE or facts.ended:
            return
        name = str(plan.generation)
        if not any((line["generation"], line["reason"]) == (name, plan.reason) for line in store.events.all()):
            step = store.plans.end_of(plan.base)
            await self._outbox.event("reshape", plan.reason, step=facts.step if step is None else step)

    async def _send_plan(self, plan: Plan, preparation: Preparation) -> None:
        """Send the durable plan to all workers; after a restart it is sent again, since sending is not recorded."""
        outbox = self._outbox
        await self._plug.at(ControllerPhase.PLANNED)
        outbox.streams.send_all(outbox.plan_message(plan))
        preparation.sent = True
        await self._plug.at(ControllerPhase.ANNOUNCED)

    async def learn(self, now: float) -> Plan | None:
        """Return the plan to which training has switched, once, after making that durable; None otherwise."""
        plan, preparation = self._facts.state.prepared, self.preparation
        if plan is None or preparation is None:
            return None
        recorded = self._store.records.first_of(str(plan.generation))
        step = preparation.switched_at(plan, self._facts.members, recorded, now)
        return await self._switched(plan, preparation, step, now) if step is not None else None

    async def advance(self) -> None:
        """Take the prepared plan's next step: send it, announce that all are ready, withdraw it, or drop it."""
        facts, plan, preparation = self._facts, self._facts.state.prepared, self.preparation
        if plan is None or preparation is None:
            return
        now = facts.clock()
        if not preparation.sent:
            await self._send_plan(plan, preparation)
        if preparation.entered_at is not None:
            return
        assert facts.current is not None
        if preparation.has_expired(plan, facts.current, facts.members):
            await self.drop(preparation.withdrawn or f"no vote had switched to it by step {plan.switch_until}")
            return
        late = now - preparation.since > facts.job.controller.reshape_deadline_seconds
        if not preparation.withdrawn and late:
            missing = [worker for worker in plan.participants if worker not in preparation.ready]
            self.withdraw(f"not switched within {facts.job.controller.reshape_deadline_seconds:g} s; not ready: {missing}")
        elif not preparation.withdrawn and (reason := self._overtaken(plan, preparation)):
            self.withdraw(reason)
        elif not preparation.withdrawn and all(worker in preparation.ready for worker in plan.participants):
            self._announce_ready(plan, preparation)

    def withdraw(self, reason: str) -> None:
        """Withdraw the plan: members stop voting for it; it is dropped once it is known that no vote has switched to it."""
        plan, preparation = self._facts.state.prepared, self.preparation
        assert plan is not None and preparation is not None
        preparation.withdrawn = reason
        notice = pb.WithdrawNotice(generation=to_message(plan.generation, plan_pb2.GenerationId), reason=reason)
        self._outbox.streams.send_all(pb.WatchPlanResponse(withdraw=notice))
        log.warning("plan withdrawn generation=%s reason=%r", plan.generation, reason)
        self._facts.wake.set()

    def forget(self) -> bool:
        """Forget the preparation where a plan entered without a vote has replaced its plan. Returns whether there was one."""
        if self._facts.state.prepared is not None or self.preparation is None:
            return False
        self.preparation = None
        return True

    async def drop(self, reason: str) -> None:
        """Drop an expired plan, to which no vote can switch. Its number is never used again."""
        plan, preparation = self._facts.state.prepared, self.preparation
        assert plan is not None
        if preparation is not None and not preparation.withdrawn:
            self.withdraw(reason)
        await self._store.commit(prepared=None)
        self.preparation = None
        log.info("plan dropped generation=%s reason=%r", plan.generation, reason)

    def _announce_ready(self, plan: Plan, preparation: Preparation) -> None:
        if preparation.notice_sent:
            return
        preparation.announced = preparation.notice_sent = True
        notice = pb.ReadyNotice(generation=to_message(plan.generation, plan_pb2.GenerationId))
        assert plan.base is not None and self._facts.current is not None
        voters = {*self._facts.current.placement.workers, *plan.participants}
        self._outbox.streams.send_to(voters, pb.WatchPlanResponse(ready=notice))
        log.info("plan ready generation=%s seconds=%.3f", plan.generation, self._facts.clock() - preparation.since)

    async def _switched(self, plan: Plan, preparation: Preparation, step: int, now: float) -> Plan:
        facts, store, outbox = self._facts, self._store, self._outbox
        base = facts.current
        assert base is not None
        await store.plans.append([plan_end_line(base.generation, step), plan_line(plan, step + 1)])
        continued = (*facts.state.continued, base.generation)[-CONTINUED_KEPT:]
        await store.commit(current=plan, prepared=None, continued=continued, pinned=facts.state.pinned_under(plan))
        facts.entered = dict(preparation.entered)
        seconds = max((seconds for _, seconds in preparation.entered.values()), default=0.0)
        if preparation.ready:
            facts.reshape_seconds = max(0.05, seconds or now - preparation.since)
        self.preparation = None
        await outbox.event(preparation.cause, plan.reason, seconds, step=step)
        return plan

    def _overtaken(self, plan: Plan, preparation: Preparation) -> str:
        """Return why the plan should be made anew; empty: it should not.

        A lost participant is always a reason. A leaver, a newer decision or lineage, and a changed job are reasons as long as no
        member may vote for the plan.
        """
        if loss := self._facts.loss_among(plan.participants, self._facts.members.lost_after_seconds):
            return loss
        if preparation.announced:
            return ""
        if leaver := next((worker for worker in self._facts.members if self._leaves(worker, plan)), None):
            return f"{leaver.pod_name} wants to leave"
        newest = in_force(self._facts.surviving(), self._facts.total_steps + 1)
        if newest is not None and newest.number != plan.decision_number:
            return f"overtaken by decision {newest.number}"
        if plan.lineage != self._facts.state.lineage:
            return f"overtaken by lineage {self._facts.state.lineage}"
        if self._facts.behind(plan):
            return "overtaken by a changed job"
        return ""

    def _leaves(self, worker: Worker, plan: Plan) -> bool:
        return worker.presence == LEAVING and worker.worker_id in plan.placement.workers


def _of(generation: plan_pb2.GenerationId) -> str:
    return f"{generation.incarnation}.{generation.counter}"
