"""The entry into a generation that began without a vote: watched until all its members are inside, then told as one event."""

from dataclasses import dataclass

from frostline_contract.plan import Plan
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore


@dataclass
class Entry:
    """A plan whose members have not all entered yet.

    Attributes:
        since: when the failure that the plan answers began, or the run's start, by the run's clock.
        planned_at: when the plan was made; again when its members were found to be late.
        reason: what is told when all have entered; empty where it was told already.
        failed: the plan answers a failure.
        lost_steps: steps that were committed and are computed again.
    """

    since: float
    planned_at: float
    reason: str
    failed: bool
    lost_steps: int = 0


class EntryWatch:
    """Follows the newest plan's entry.

    Attributes:
        just_entered: all members have entered since whoever waits for that has looked, who sets it back.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self.just_entered = False
        self._entry: Entry | None = None
        if facts.current is not None:
            self._entry = Entry(facts.clock(), facts.clock(), "", failed=False)

    def restore(self) -> None:
        """Take over from a predecessor: a plan whose entry it has not told of is told by us."""
        facts, plan = self._facts, self._facts.current
        if plan is None or plan.start == "continue" or facts.ended or facts.state.between:
            return
        told = any(
            line["kind"] in ("failure", "start") and line["generation"] == str(plan.generation)
            for line in self._store.events.all()
        )
        if not told:
            self._entry = Entry(facts.clock(), facts.clock(), plan.reason, failed=plan.base is not None)

    def expect(self, entry: Entry | None) -> None:
        """Follow this entry from now on; None: nobody is to enter anything."""
        self._entry = entry

    async def interrupt(self, plan: Plan, now: float) -> float | None:
        """A failure has ended the entry into `plan`. An answer to a failure that was itself interrupted is told so.

        Returns:
            Since when the first of the failures lasts; None where the entry was no answer to one.
        """
        entry = self._entry
        if entry is None or not entry.failed or not entry.reason:
            return None
        await self._tell(plan, entry, now, f"{entry.reason} (interrupted)")
        return entry.since

    async def advance(self, now: float) -> str:
        """Look once.

        Returns:
            Why the entry has failed: members are late, or wait for the state of a worker that is out of reach. Empty where it has
            not.
        """
        facts, plan, entry = self._facts, self._facts.current, self._entry
        if entry is None:
            return ""
        assert plan is not None
        inside = [worker_id for worker_id in plan.placement.workers if self._is_inside(worker_id, plan)]
        if len(inside) == len(plan.placement.workers):
            self._entry, self.just_entered = None, True
            await self._tell(plan, entry, now, entry.reason)
        elif plan.start != "continue" and now - entry.planned_at > facts.job.controller.reshape_deadline_seconds:
            entry.planned_at = now
            late = [worker_id for worker_id in plan.placement.workers if worker_id not in inside]
            return f"{len(late)} of {len(plan.placement.workers)} workers did not enter {plan.generation}: {late[:4]}"
        return self._lost_giver(plan, entry, now)

    def _lost_giver(self, plan: Plan, entry: Entry, now: float) -> str:
        """Why members wait in vain: a worker that was to give them state, and is no member, is out of reach. Empty: they do not.

        The end of a process shows in its sockets; a machine that is gone shows nowhere else. The answer keeps what was given.
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

    async def _tell(self, plan: Plan, entry: Entry, now: float, reason: str) -> None:
        if plan.start == "continue" or not reason:
            return
        step = max(plan.start_step, 0)
        kind, lost = ("failure", {"lost_steps": entry.lost_steps}) if entry.failed else ("start", {})
        await self._outbox.event(
            kind, reason, now - entry.since, step=step, lineage=plan.lineage, generation=str(plan.generation), **lost
        )
