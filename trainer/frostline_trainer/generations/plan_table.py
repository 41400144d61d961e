"""The plans that a worker has received: one row each, with one state, and the transitions that a state allows.

    HEARD -> FORMING -> PREPARED -> READY -> SWITCHED -> ENTERING -> CURRENT -> OVER

Until it is SWITCHED a plan that continues may become WITHDRAWN or EXPIRED. Any other is entered when it is PREPARED, or FAILED.

Whatever is not in `TRANSITIONS` is refused: a message that comes late changes nothing. A promise (docs/protocols.md 4.1) ends
every row up to one generation, and no row up to it is made any more.
"""

import threading
from dataclasses import dataclass, field
from enum import Enum

from frostline_contract.plan import CONTINUE, GenerationId, Plan

NONE = GenerationId(incarnation=0, counter=0)


class PlanState(Enum):
    """What has become of a plan, as far as this worker knows."""

    OTHERS = "it does not name this worker"
    HEARD = "received, its groups are not being formed yet"
    FORMING = "its groups are being formed"
    PREPARED = "its groups stand, and the controller is told so"
    READY = "all participants are prepared: members may vote for it"
    WITHDRAWN = "taken back, by the controller or by this worker: only a vote that is under way may still switch to it"
    FAILED = "its groups were not formed, and it cannot wait: a report is due"
    SWITCHED = "a vote has switched to it"
    ENTERING = "this worker brings its state in place"
    CURRENT = "this worker is a member of its generation"
    EXPIRED = "no vote has switched to it, and none will (docs/protocols.md 3.3): told in reports as its fate"
    OVER = "left, replaced by a later one, or promised never to be entered"


FORMED = frozenset({PlanState.PREPARED, PlanState.READY, PlanState.SWITCHED, PlanState.ENTERING})
"""States in which a controller that asks is told that this worker is prepared."""
REFUSED = frozenset({PlanState.WITHDRAWN, PlanState.FAILED})
"""States in which it is told that this worker is not, and why."""

_ENDS = (PlanState.EXPIRED, PlanState.OVER)
TRANSITIONS: dict[PlanState, tuple[PlanState, ...]] = {
    PlanState.OTHERS: (),
    PlanState.HEARD: (PlanState.FORMING, PlanState.WITHDRAWN, *_ENDS),
    PlanState.FORMING: (PlanState.PREPARED, PlanState.WITHDRAWN, PlanState.FAILED, *_ENDS),
    # To SWITCHED: a joiner holds no vote, and the notice that all are ready may reach it after the switch.
    PlanState.PREPARED: (PlanState.READY, PlanState.WITHDRAWN, PlanState.SWITCHED, PlanState.ENTERING, *_ENDS),
    PlanState.READY: (PlanState.WITHDRAWN, PlanState.SWITCHED, *_ENDS),
    PlanState.WITHDRAWN: (PlanState.SWITCHED, *_ENDS),
    PlanState.FAILED: (PlanState.OVER,),
    PlanState.SWITCHED: (PlanState.ENTERING, PlanState.OVER),
    PlanState.ENTERING: (PlanState.CURRENT, PlanState.OVER),
    PlanState.CURRENT: (PlanState.OVER,),
    PlanState.EXPIRED: (),
    PlanState.OVER: (),
}


@dataclass(frozen=True)
class DueReport:
    """A report that must be made now.

    Args:
        reason: Why, in words.
        until: The newest generation received when the report fell due: what its promise covers.
    """

    reason: str
    until: GenerationId


@dataclass
class Row:
    """One plan.

    Args:
        plan: The plan as it was announced.
        state: What has become of it.
        reason: Of WITHDRAWN and FAILED, in words.
        unanswered: Whether the controller is still to be told that this worker is not prepared, or told either again.
        named: Whether a ballot of this worker has named the plan: the vote may have switched to it unseen.
    """

    plan: Plan
    state: PlanState = PlanState.HEARD
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
        fence: The newest generation that is over by the controller's word.
        fence_reason: Why; empty where the fence has been answered.
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

        A plan that comes again is to be answered again: a new controller may not know the answer.
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
            self.rows[plan.generation.counter] = Row(plan, PlanState.HEARD if named else PlanState.OTHERS)
            self.changed.notify_all()
            return True

    def all_ready(self, counter: int) -> bool:
        """All participants of the plan are prepared. Returns False where its state or its start takes no such news."""
        with self.changed:
            row = self.rows.get(counter)
            return row is not None and row.plan.start == CONTINUE and self._move(counter, PlanState.READY)

    def withdraw(self, counter: int, reason: str = "withdrawn by the controller") -> bool:
        """Members vote for the plan no more, and the controller is told from when on. Only what continues waits for a vote."""
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
        """Generations up to this one are over: a report is due.

        Where this worker runs nothing and a newer plan has come since, the fence is stale and no report is due.
        """
        with self.changed:
            self.fence, self.newest = max(self.fence, generation), max(self.newest, generation)
            self.fence_reason = reason or "fenced"
            self.changed.notify_all()

    # ---- a report is a promise (docs/protocols.md 4.1)

    def due_report(self) -> DueReport | None:
        """The report that a fence asks for, with what the report's promise covers: what has been received by now."""
        with self.changed:
            running = self.running
            over = running.generation <= self.fence if running is not None else self.newest <= self.fence
            return DueReport(self.fence_reason, self.newest) if over and self.fence_reason else None

    def promise(self, until: GenerationId | None = None) -> GenerationId:
        """End every plan up to `until`, and refuse each of them from now on. Returns the newest generation so promised away.

        A plan that follows the running one, and that no ballot of this worker has named, expires: a vote needs every member, and
        this one takes part in no later vote (docs/protocols.md 3.3).

        Args:
            until: The newest generation that had been received when the report fell due (`DueReport.until`). A plan that came
                after that may be the answer, and stays. None: the report falls due now.
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
            heard = [row.plan for row in self.rows.values() if row.state is PlanState.HEARD]
            return [plan for plan in heard if self._move(plan.generation.counter, PlanState.FORMING)]

    def formed(self, generation: GenerationId) -> bool:
        """The plan's groups stand. Returns False where the plan has been taken back or has ended: they are of no use."""
        return self._move(generation.counter, PlanState.PREPARED)

    def not_formed(self, generation: GenerationId, reason: str) -> bool:
        """The plan's groups were not formed. A running generation goes on without it; any other start must be reported.

        Returns False where the plan has ended, so that nobody waits for an answer.
        """
        with self.changed:
            row = self.rows.get(generation.counter)
            if row is None or row.plan.start == CONTINUE:
                return self.withdraw(generation.counter, reason)
            row.unanswered = self._move(generation.counter, PlanState.FAILED, reason)
            return row.unanswered

    def take_unanswered(self) -> list[Row]:
        """Copies of the rows whose answer the controller waits for: in a state of FORMED, or of REFUSED with the reason."""
        with self.changed:
            due = [row for row in self.rows.values() if row.unanswered]
            for row in due:
                row.unanswered = False
            return [Row(row.plan, row.state, row.reason) for row in due]

    def due(self) -> Row | None:
        """The newest plan that this worker must enter now, or FAILED where it must report instead; None: none yet.

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
        """A vote has switched to the plan: seen by a member, or found in the plan's store by a joiner."""
        return self._move(generation.counter, PlanState.SWITCHED)

    def entering(self, generation: GenerationId) -> None:
        """This worker enters the plan now. Raises RuntimeError where the plan has ended meanwhile."""
        if not self._move(generation.counter, PlanState.ENTERING):
            raise RuntimeError(f"plan {generation} cannot be entered: {self.state(generation).value}")

    def entered(self, generation: GenerationId, as_member: bool) -> None:
        """This worker has entered the plan as a member, or has given its state away as a leaver. Older plans are over."""
        with self.changed:
            for row in self.rows.values():
                if row.plan.generation < generation:
                    self._move(row.plan.generation.counter, PlanState.OVER)
            self._move(generation.counter, PlanState.CURRENT if as_member else PlanState.OVER)

    @property
    def running(self) -> Plan | None:
        """The plan that this worker is a member of, or is entering."""
        with self.changed:
            found = {row.state: row.plan for row in self.rows.values()}
            return found.get(PlanState.ENTERING) or found.get(PlanState.CURRENT)

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
        """Plans for which this worker's ballot in the vote of `step` says no, and will in every later one.

        If that vote passes without a switch to them, no vote switches to them any more (docs/protocols.md 3.3).
        """
        with self.changed:
            waiting = [row for row in self.rows.values() if PlanState.EXPIRED in TRANSITIONS[row.state]]
            return {
                row.plan.generation
                for row in waiting
                if row.plan.start == CONTINUE and (row.plan.switch_until < step or row.state is PlanState.WITHDRAWN)
            }

    def expire(self, generations: set[GenerationId]) -> None:
        """No vote will switch to these plans any more."""
        for generation in generations:
            self._move(generation.counter, PlanState.EXPIRED)

    @property
    def expired(self) -> set[GenerationId]:
        """Plans to which no vote switches any more, as this worker knows."""
        with self.changed:
            return {row.plan.generation for row in self.rows.values() if row.state is PlanState.EXPIRED}

    # ---- rows

    def plan(self, counter: int) -> Plan:
        """A plan that is not over."""
        return self.rows[counter].plan

    def state(self, generation: GenerationId) -> PlanState:
        """What has become of a plan that was received."""
        with self.changed:
            row = self.rows.get(generation.counter)
            return row.state if row is not None else PlanState.OVER

    def _forget_what_is_over(self) -> None:
        """Rows that say no more than `newest` does. A long run has many plans, and each is as large as the world."""
        said = (PlanState.OVER, PlanState.OTHERS)
        self.rows = {counter: row for counter, row in self.rows.items() if row.state not in said}

    def _move(self, counter: int, state: PlanState, reason: str = "") -> bool:
        """Bring a row into another state, where its own allows that."""
        with self.changed:
            row = self.rows.get(counter)
            if row is None or state not in TRANSITIONS[row.state]:
                return False
            row.state, row.reason = state, reason
            self.changed.notify_all()
            return True
