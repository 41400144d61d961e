"""The plans that a worker has received: one row each, with one state (`plan_states`).

A promise (docs/protocols.md 4.1) ends every row up to one generation, and refuses new rows up to it.
"""

import threading
from dataclasses import dataclass, field

from frostline_contract.plan import CONTINUE, GenerationId, Plan
from frostline_trainer.generations.plan_states import FORMED, REFUSED, TRANSITIONS, PlanState

NONE = GenerationId(incarnation=0, counter=0)


@dataclass(frozen=True)
class DueReport:
    """A report that must be made now.

    Args:
        reason: Why, in words.
        until: The newest generation received when the report fell due; the report's promise covers generations up to it.
    """

    reason: str
    until: GenerationId


@dataclass
class Row:
    """One plan.

    Args:
        plan: The plan as it was announced.
        state: Its state.
        reason: Why it is WITHDRAWN or FAILED.
        unanswered: Whether an answer (prepared, or not prepared) is to be sent to the controller, perhaps once more.
        named: Whether a ballot of this worker has named the plan: the vote may have switched to it unseen.
    """

    plan: Plan
    state: PlanState = PlanState.RECEIVED
    reason: str = ""
    unanswered: bool = False
    named: bool = False


@dataclass
class PlanTable:
    """All plans by their counter, which is never used twice. Callable from any thread.

    Args:
        worker_id: Of the worker whose table it is.
        changed: Notified whenever a row, a fence or a promise has changed.
        newest: The newest generation received, in plans and in fences.
        promised: No generation up to this one is entered any more.
        fence: The newest generation that the controller has fenced.
        fence_reason: Why the controller has fenced it; empty after the fence was answered.
    """

    worker_id: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    rows: dict[int, Row] = field(default_factory=dict)
    newest: GenerationId = NONE
    promised: GenerationId = NONE
    fence: GenerationId = NONE
    fence_reason: str = ""

    # ---- what the controller says

    def receive(self, plan: Plan) -> bool:
        """Take an announced plan. Returns whether it is new, not superseded and not promised away.

        A plan that is announced again gets another answer: a new controller may not know the first one.
        """
        with self.changed:
            if plan.generation <= self.promised:
                return False
            if (known := self.rows.get(plan.generation.counter)) is not None:
                known.unanswered = known.state in FORMED | REFUSED
                self.changed.notify_all()
                return False
            if plan.generation < self.newest:
                return False
            self.newest = plan.generation
            self._forget_what_is_over()
            named = self.worker_id in plan.participants
            self.rows[plan.generation.counter] = Row(plan, PlanState.RECEIVED if named else PlanState.OTHERS)
            self.changed.notify_all()
            return True

    def all_ready(self, counter: int) -> bool:
        """Mark the plan as READY: all participants are prepared. Returns False if its state or its start does not allow it."""
        with self.changed:
            row = self.rows.get(counter)
            return row is not None and row.plan.start == CONTINUE and self._move(counter, PlanState.READY)

    def withdraw(self, counter: int, reason: str = "withdrawn by the controller") -> bool:
        """Stop voting for the plan, and answer the controller. Only for a plan that continues: others wait for no vote."""
        with self.changed:
            row = self.rows.get(counter)
            if row is None or row.plan.start != CONTINUE:
                return False
            again = row.state is PlanState.WITHDRAWN
            if not again and not self._move(counter, PlanState.WITHDRAWN, reason):
                return False
            row.unanswered = True
            self.changed.notify_all()
            return not again

    def put_fence(self, generation: GenerationId, reason: str) -> None:
        """Note that generations up to this one are over, so that a report is due.

        If this worker runs no generation and has received a newer plan, the fence is stale and no report is due.
        """
        with self.changed:
            self.fence, self.newest = max(self.fence, generation), max(self.newest, generation)
            self.fence_reason = reason or "fenced"
            self.changed.notify_all()

    # ---- a report is a promise (docs/protocols.md 4.1)

    def due_report(self) -> DueReport | None:
        """The report that a fence asks for; its promise covers all generations received by now. None: no report is due."""
        with self.changed:
            running = self.running
            over = running.generation <= self.fence if running is not None else self.newest <= self.fence
            return DueReport(self.fence_reason, self.newest) if over and self.fence_reason else None

    def promise(self, until: GenerationId | None = None) -> GenerationId:
        """End every plan up to `until`, and refuse each of them from now on. Returns the newest generation that this covers.

        A plan that follows the running one, and that no ballot of this worker has named, expires: a vote needs every member, and
        this one takes part in no later vote (docs/protocols.md 3.3).

        Args:
            until: The newest generation that had been received when the report fell due (`DueReport.until`). A later plan may be
                the answer to the failure, and stays. None: the report falls due now.
        """
        with self.changed:
            self.promised, self.fence_reason = max(self.promised, until or self.newest), ""
            over = [row for row in self.rows.values() if row.plan.generation <= self.promised]
            member_of = [row.plan.generation for row in over if row.state is PlanState.CURRENT]
            for row in over:
                unvoted = row.plan.start == CONTINUE and row.plan.base in member_of and not row.named
                if not (unvoted and self._move(row.plan.generation.counter, PlanState.EXPIRED)):
                    self._move(row.plan.generation.counter, PlanState.OVER)
            return self.promised

    # ---- what this worker does

    def start_forming(self) -> list[Plan]:
        """Plans whose groups are to be formed now; each is returned once."""
        with self.changed:
            received = [row.plan for row in self.rows.values() if row.state is PlanState.RECEIVED]
            return [plan for plan in received if self._move(plan.generation.counter, PlanState.FORMING)]

    def formed(self, generation: GenerationId) -> bool:
        """Mark the plan as PREPARED. Returns False if it was withdrawn or has ended: its groups are of no use then."""
        return self._move(generation.counter, PlanState.PREPARED)

    def not_formed(self, generation: GenerationId, reason: str) -> bool:
        """Mark the plan's groups as not formed. A running generation goes on without the plan; any other plan is FAILED.

        Returns False if the plan has ended, so that no answer is needed.
        """
        with self.changed:
            row = self.rows.get(generation.counter)
            if row is None or row.plan.start == CONTINUE:
                return self.withdraw(generation.counter, reason)
            row.unanswered = self._move(generation.counter, PlanState.FAILED, reason)
            return row.unanswered

    def take_unanswered(self) -> list[Row]:
        """Copies of the rows whose answer is still to be sent: in a state of FORMED, or of REFUSED with the reason."""
        with self.changed:
            due = [row for row in self.rows.values() if row.unanswered]
            for row in due:
                row.unanswered = False
            return [Row(row.plan, row.state, row.reason) for row in due]

    def due(self) -> Row | None:
        """The newest plan that this worker must enter now, or a FAILED one, which it must report; None: none yet.

        A plan that continues is entered when a vote has switched to it, any other as soon as it is prepared.
        """
        with self.changed:
            for counter in sorted(self.rows, reverse=True):
                row = self.rows[counter]
                if row.state in (PlanState.SWITCHED, PlanState.FAILED):
                    return row
                if row.state is PlanState.PREPARED and row.plan.start != CONTINUE:
                    return row
            return None

    def switched(self, generation: GenerationId) -> bool:
        """Mark the plan as SWITCHED: a member has seen the vote, or a joiner has read it in the plan's store."""
        return self._move(generation.counter, PlanState.SWITCHED)

    def entering(self, generation: GenerationId) -> None:
        """Mark the plan as ENTERING. Raises RuntimeError if the plan has ended meanwhile."""
        if not self._move(generation.counter, PlanState.ENTERING):
            raise RuntimeError(f"plan {generation} cannot be entered: {self.state(generation).value}")

    def entered(self, generation: GenerationId, as_member: bool) -> None:
        """Mark the plan as entered, by a member, or by a leaver that has sent its state. Older plans are over.

        The fates of older plans are forgotten: a failure of this generation asks after its followers alone.
        """
        with self.changed:
            for row in list(self.rows.values()):
                if row.plan.generation < generation and not self._move(row.plan.generation.counter, PlanState.OVER):
                    del self.rows[row.plan.generation.counter]
            self._move(generation.counter, PlanState.CURRENT if as_member else PlanState.OVER)

    @property
    def running(self) -> Plan | None:
        """The plan that this worker is a member of, or is entering."""
        with self.changed:
            found = {row.state: row.plan for row in self.rows.values()}
            return found.get(PlanState.ENTERING) or found.get(PlanState.CURRENT)

    def is_member_of(self, generation: GenerationId | None) -> bool:
        """Whether this worker has a vote in a generation that it runs or is entering. A leaver, which sends its state there, has
        none."""
        plan = self.running
        return plan is not None and plan.generation == generation and self.worker_id in plan.placement.global_ranks

    # ---- votes

    def votable(self, step: int, decision_number: int) -> int:
        """The counter of the plan that this worker's ballot names in the vote of `step`; 0: none (docs/protocols.md 3.2)."""
        with self.changed:
            for counter in sorted(self.rows, reverse=True):
                row = self.rows[counter]
                in_window = row.plan.switch_from <= step <= row.plan.switch_until
                continues = row.plan.start == CONTINUE and row.plan.decision_number == decision_number
                if row.state is PlanState.READY and continues and in_window:
                    row.named = True
                    return counter
            return 0

    def ruled_out(self, step: int) -> set[GenerationId]:
        """Plans for which this worker is not ready in the vote of `step`, nor in any later vote.

        If this vote passes without a switch to them, no later vote can switch to them (docs/protocols.md 3.3).
        """
        with self.changed:
            waiting = [row for row in self.rows.values() if PlanState.EXPIRED in TRANSITIONS[row.state]]
            return {
                row.plan.generation
                for row in waiting
                if row.plan.start == CONTINUE and (row.plan.switch_until < step or row.state is PlanState.WITHDRAWN)
            }

    def expire(self, generations: set[GenerationId]) -> None:
        """Mark plans as EXPIRED: no vote will switch to them any more."""
        for generation in generations:
            self._move(generation.counter, PlanState.EXPIRED)

    @property
    def expired(self) -> set[GenerationId]:
        """The plans that this worker knows to be expired: no vote will switch to them."""
        with self.changed:
            return {row.plan.generation for row in self.rows.values() if row.state is PlanState.EXPIRED}

    # ---- rows

    def plan(self, counter: int) -> Plan:
        """The plan with this counter, which is not over."""
        return self.rows[counter].plan

    def state(self, generation: GenerationId) -> PlanState:
        """The state of a plan that was received."""
        with self.changed:
            row = self.rows.get(generation.counter)
            return row.state if row is not None else PlanState.OVER

    def _forget_what_is_over(self) -> None:
        """Delete rows that are over, which `newest` covers. A long run has many plans, each as large as the world."""
        said = (PlanState.OVER, PlanState.OTHERS)
        self.rows = {counter: row for counter, row in self.rows.items() if row.state not in said}

    def _move(self, counter: int, state: PlanState, reason: str = "") -> bool:
        """Move a row to another state, if the transition is allowed. Returns whether it was."""
        with self.changed:
            row = self.rows.get(counter)
            if row is None or state not in TRANSITIONS[row.state]:
                return False
            row.state, row.reason = state, reason
            self.changed.notify_all()
            return True
