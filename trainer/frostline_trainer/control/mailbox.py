"""What the controller has told this worker: written by the watch thread, read by the training thread at each vote."""

import threading
from dataclasses import dataclass, field

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision, GenerationId, Plan

NONE = GenerationId(incarnation=0, counter=0)


@dataclass(frozen=True)
class DueReport:
    """reason: why a report is due. until: the newest generation heard when it was, which the report's promise covers."""

    reason: str
    until: GenerationId


@dataclass
class Mailbox:
    """Newest-wins notices. All methods may be called from any thread.

    plans: plans that name this worker and are not over, by counter. allowed: counters whose participants are all ready.
    prepared: counters that this worker has prepared itself. known: counters heard. repeated: heard again, by a controller that
    may not know the answer. dead: plans to which, as this worker knows, no vote switches any more. newest: of all generations
    heard, in plans and in fences. promised: this worker enters none up to it any more
    (docs/protocols.md 4.1). fence: the newest that was fenced; fence_reason: why, empty where it has been answered.
    """

    worker_id: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    plans: dict[int, Plan] = field(default_factory=dict)
    allowed: set[int] = field(default_factory=set)
    prepared: set[int] = field(default_factory=set)
    withdrawn: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)
    dead: set[GenerationId] = field(default_factory=set)
    newest: GenerationId = NONE
    promised: GenerationId = NONE
    fence: GenerationId = NONE
    fence_reason: str = ""
    drain: str = ""
    end: str = ""
    checkpoint: bool = False
    lost: str = ""
    _answered: set[int] = field(default_factory=set)
    _buried: set[GenerationId] = field(default_factory=set)

    def put_plan(self, plan: Plan) -> bool:
        """Take a plan; False where it is older than what was heard, or known already (then it is to be answered again)."""
        with self.changed:
            if plan.generation <= self.promised:
                return False
            if plan.generation.counter in self.known:
                self.repeated.add(plan.generation.counter)
                self.changed.notify_all()
                return False
            if plan.generation < self.newest:
                return False
            self.newest = plan.generation
            self.known.add(plan.generation.counter)
            for decision in plan.decisions:
                self._put_decision(decision)
            if self.worker_id in plan.participants:
                self.plans[plan.generation.counter] = plan
            self.changed.notify_all()
            return self.worker_id in plan.participants

    def put_decision(self, decision: Decision) -> None:
        with self.changed:
            self._put_decision(decision)
            self.changed.notify_all()

    def allow(self, counter: int) -> None:
        with self.changed:
            self.allowed.add(counter)
            self.changed.notify_all()

    def withdraw(self, counter: int) -> None:
        with self.changed:
            self.withdrawn.add(counter)
            self.changed.notify_all()

    def put_fence(self, generation: GenerationId, reason: str) -> None:
        """Generations up to this one are over: a report is due. One that is older than a plan heard since is stale for those
        that run nothing.
        """
        with self.changed:
            self.fence = max(self.fence, generation, key=_order)
            self.newest = max(self.newest, generation, key=_order)
            self.fence_reason = reason or "fenced"
            self.changed.notify_all()

    def due_report(self, running: GenerationId | None) -> DueReport | None:
        """The report that must be made now, if any. running: the generation that this worker is a member of."""
        with self.changed:
            if self.lost:
                return DueReport(self.lost, self.newest)
            over = running <= self.fence if running is not None else self.newest <= self.fence
            return DueReport(self.fence_reason, self.newest) if over and self.fence_reason else None

    def promise(self, until: GenerationId | None = None) -> GenerationId:
        """Enter nothing up to `until`, from now on. Returns it, or what was promised before; plans up to it are forgotten.

        None: the newest generation heard. A plan that came after the report fell due may be the answer, and is not over.
        """
        with self.changed:
            self.promised, self.fence_reason = max(self.promised, until or self.newest, key=_order), ""
            self.plans = {number: plan for number, plan in self.plans.items() if self.promised < plan.generation}
            return self.promised

    def mark_prepared(self, counter: int) -> None:
        with self.changed:
            self.prepared.add(counter)
            self.changed.notify_all()

    def tell(self, **notices: object) -> None:
        """Set drain, end, checkpoint or lost."""
        with self.changed:
            for name, value in notices.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def decision(self, lineage: int, number: int) -> Decision | None:
        """The decision due as `number` in `lineage`."""
        with self.changed:
            return self.decisions.get((lineage, number))

    def votable(self, step: int, decision_number: int) -> int:
        """The counter of the plan that this worker may vote ready for in the vote of `step`; 0: none (docs/protocols.md 3.2)."""
        with self.changed:
            for counter in sorted(self.plans, reverse=True):
                plan = self.plans[counter]
                may = counter in self.allowed and counter in self.prepared and counter not in self.withdrawn
                in_window = plan.switch_from <= step <= plan.switch_until
                if may and plan.start == "continue" and in_window and plan.decision_number == decision_number:
                    return counter
            return 0

    def ruled_out(self, step: int) -> set[GenerationId]:
        """Plans for which this worker's ballot in the vote of `step` says no, and will in every later one: if that vote passes,
        no vote switches to them any more (docs/protocols.md 3.3).
        """
        with self.changed:
            return {
                plan.generation
                for counter, plan in self.plans.items()
                if plan.start == "continue" and (plan.switch_until < step or counter in self.withdrawn)
            }

    def bury(self, generations: set[GenerationId]) -> None:
        """No vote will switch to these plans any more."""
        with self.changed:
            self.dead |= generations
            self._buried |= generations
            self.plans = {number: plan for number, plan in self.plans.items() if plan.generation not in generations}
            if generations:
                self.changed.notify_all()

    def take_repeated(self) -> list[Plan]:
        """Prepared plans whose announcement came again: their answer is due again."""
        with self.changed:
            again = [self.plans[counter] for counter in self.repeated if counter in self.plans and counter in self.prepared]
            self.repeated.clear()
            return again

    def take_withdrawn(self) -> list[Plan]:
        """Plans that have been withdrawn since the last call. A vote under way may yet switch to one (docs/protocols.md 3.2)."""
        with self.changed:
            fresh = sorted(self.withdrawn - self._answered)
            self._answered |= self.withdrawn
            return [self.plans[counter] for counter in fresh if counter in self.plans]

    def forget_plans_until(self, counter: int) -> None:
        """A generation was entered: it and older plans are nothing to vote for any more."""
        with self.changed:
            self.plans = {number: plan for number, plan in self.plans.items() if number > counter}

    def refile(self, plan: Plan, calendar: DecisionCalendar) -> None:
        """A restore began a new lineage: decisions whose interval it kept and whose step is still to come are due in it too."""
        with self.changed:
            for decision in plan.decisions:
                kept = calendar.last_step_of(decision.interval) <= plan.start_step < decision.effective_step
                if kept and decision.kind != "rollback":
                    self.decisions.setdefault((plan.lineage, decision.number), decision)

    def take_buried(self) -> set[GenerationId]:
        """Plans that have died since the last call: their groups are of no use."""
        with self.changed:
            buried, self._buried = self._buried, set()
            return buried

    def wake(self) -> None:
        """Something has changed that is not kept here."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait(seconds)

    def _put_decision(self, decision: Decision) -> None:
        self.decisions[decision.decided_in, decision.number] = decision


def _order(generation: GenerationId) -> tuple[int, int]:
    return generation.incarnation, generation.counter
