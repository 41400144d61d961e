"""What the controller has told this worker: written by the watch thread, read by the training thread at each vote."""

import threading
from dataclasses import dataclass, field

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision, GenerationId, Plan


@dataclass
class Mailbox:
    """Newest-wins notices. All methods may be called from any thread.

    plans: plans that name this worker and are not over, by counter. allowed: counters whose participants are all ready.
    prepared: counters that this worker has prepared itself. known: counters heard. repeated: heard again, by a controller that
    may not know the answer.
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
    newest: GenerationId = field(default_factory=lambda: GenerationId(incarnation=0, counter=0))
    drain: str = ""
    end: str = ""
    checkpoint: bool = False
    lost: str = ""

    def put_plan(self, plan: Plan) -> bool:
        """Take a plan; False where it is older than what was heard, or known already (then it is to be answered again)."""
        with self.changed:
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
        """The decision due as `number` in `lineage`; a rollback is filed under the lineage that it ends."""
        with self.changed:
            return self.decisions.get((lineage, number))

    def votable(self, step: int, decision_number: int) -> int:
        """The counter of the plan that this worker may vote ready for in the vote of `step`; 0 for none (PROTOCOLS 3)."""
        with self.changed:
            for counter in sorted(self.plans, reverse=True):
                plan = self.plans[counter]
                may = counter in self.allowed and counter in self.prepared and counter not in self.withdrawn
                in_window = plan.switch_from <= step <= plan.switch_until
                if may and plan.start == "continue" and in_window and plan.decision_number == decision_number:
                    return counter
            return 0

    def take_repeated(self) -> list[Plan]:
        """Prepared plans whose announcement came again: their answer is due again."""
        with self.changed:
            again = [self.plans[counter] for counter in self.repeated if counter in self.plans and counter in self.prepared]
            self.repeated.clear()
            return again

    def take_withdrawn(self) -> list[Plan]:
        """Plans that have been withdrawn since the last call; they are forgotten."""
        with self.changed:
            return [self.plans.pop(counter) for counter in sorted(self.withdrawn) if counter in self.plans]

    def forget_plans_until(self, counter: int) -> None:
        """A generation was entered: it and older plans are nothing to vote for any more."""
        with self.changed:
            self.plans = {number: plan for number, plan in self.plans.items() if number > counter}

    def refile(self, plan: Plan, calendar: DecisionCalendar) -> None:
        """A restore began a new lineage: decisions whose interval it kept and whose step is still to come are due in it too."""
        with self.changed:
            for decision in plan.decisions:
                kept = decision.interval * calendar.interval_steps <= plan.start_step < decision.effective_step
                if kept and decision.kind != "rollback":
                    self.decisions.setdefault((plan.lineage, decision.number), decision)

    def wait(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait(seconds)

    def _put_decision(self, decision: Decision) -> None:
        lineage = decision.lineage - 1 if decision.kind == "rollback" else decision.lineage
        self.decisions[lineage, decision.number] = decision
