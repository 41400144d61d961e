"""The entry into a generation that began without a vote: watched until all its members are inside, then one event is written."""

from dataclasses import dataclass

from frostline_contract.plan import Plan
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore


@dataclass
class Entry:
    """A plan whose members have not all entered yet.

    Attributes:
        plan: the plan.
        since: when the failure that the plan answers began, or the run's start, by the run's clock.
        planned_at: when the plan was made, or when its members were last found to be late.
        reason: the text of the event that is written when all have entered; empty where it has been written.
        failed: whether the plan answers a failure.
        lost_steps: how many committed steps have to be computed again.
    """

    plan: Plan
    since: float
    planned_at: float
    reason: str
    failed: bool
    lost_steps: int = 0


class EntryWatch:
    """Follows the newest plan's entry.

    Attributes:
        just_entered: set when all members have entered; the reconciler sets it back when it has released the leavers.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self.just_entered = False
        self._entry: Entry | None = None
        if facts.current is not None:
            self._entry = Entry(facts.current, facts.clock(), facts.clock(), "", failed=False)

    @property
    def is_under_way(self) -> bool:
        """Whether some member of the running generation has not entered it yet, as far as is known."""
        current = self._facts.current
        return self._entry is not None and current is not None and self._entry.plan.generation == current.generation

    def restore(self) -> None:
        """Take over from a predecessor: follow the newest plan's entry, unless the predecessor has written its event already."""
        facts, plan = self._facts, self._facts.current
        if plan is None or plan.start == "continue" or facts.ended or facts.state.between:
            return
        recorded = any(
            line["kind"] in ("failure", "start") and line["generation"] == str(plan.generation)
            for line in self._store.events.all()
        )
        if not recorded:
            self._entry = Entry(plan, facts.clock(), facts.clock(), plan.reason, failed=plan.base is not None)

    def expect(self, entry: Entry | None) -> None:
        """Follow this entry from now on; None: no entry is expected."""
        self._entry = entry

    async def interrupt(self, over: Plan, now: float) -> float | None:
        """End the entry because the plan `over` has failed. Where that plan answered a failure, its event says "interrupted".

        Returns:
            When that earlier failure began; None where `over` answered none.
        """
        entry = self._entry
        if entry is None or not entry.failed or not entry.reason:
            return None
        if entry.plan.generation != over.generation:  # its members have voted for what came after it: they had entered
            await self._announce(entry, now, entry.reason)
            return None
        await self._announce(entry, now, f"{entry.reason} (interrupted)")
        return entry.since

    async def advance(self, now: float) -> str:
        """Check the entry once.

        Returns:
            Why the entry has failed: members are late, or they wait for state from a worker that is out of reach. Empty where it
            has not failed.
        """
        facts, entry = self._facts, self._entry
        if entry is None:
            return ""
        assert facts.current is not None
        plan = entry.plan
        inside = [worker_id for worker_id in plan.placement.workers if self._is_inside(worker_id, plan)]
        # Where the plan is no longer the current one, a vote of all its members has switched to the next.
        if len(inside) == len(plan.placement.workers) or plan.generation != facts.current.generation:
            self._entry, self.just_entered = None, True
            await self._announce(entry, now, entry.reason)
        elif plan.start != "continue" and now - entry.planned_at > facts.job.controller.reshape_deadline_seconds:
            entry.planned_at = now
            late = [worker_id for worker_id in plan.placement.workers if worker_id not in inside]
            return f"{len(late)} of {len(plan.placement.workers)} workers did not enter {plan.generation}: {late[:4]}"
        return self._lost_giver(plan, entry, now)

    def _lost_giver(self, plan: Plan, entry: Entry, now: float) -> str:
        """Why members wait in vain for state: a leaver that has to send it is out of reach. Empty where they do not.

        A process that ends closes its sockets, which members notice. A lost machine closes none, so it is looked for here.
        State that has already arrived is kept by the answer.
        """
        members = self._facts.members
        waits = bool(entry.reason) and plan.start != "continue" and self._facts.step <= plan.start_step
        if not waits or now - entry.planned_at <= members.dead_after_seconds:
            return ""
        silent = [worker_id for worker_id in plan.leavers if not members.has_ended(worker_id)]
        loss = self._facts.loss_among(silent, members.dead_after_seconds)
        return f"{loss}; it was to give its state to members of {plan.generation}" if loss else ""

    def _is_inside(self, worker_id: str, plan: Plan) -> bool:
        if worker_id in self._facts.entered:
            return True
        worker = self._facts.members.get(worker_id)
        return worker is not None and worker.generation == plan.generation and worker.step > 0

    async def _announce(self, entry: Entry, now: float, reason: str) -> None:
        plan = entry.plan
        if plan.start == "continue" or not reason:
            return
        step = max(plan.start_step, 0)
        kind, lost = ("failure", {"lost_steps": entry.lost_steps}) if entry.failed else ("start", {})
        await self._outbox.event(
            kind, reason, now - entry.since, step=step, lineage=plan.lineage, generation=str(plan.generation), **lost
        )
