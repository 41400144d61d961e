"""The state of a plan that is prepared while training goes on: its window, the members that are ready, and its outcome
(docs/protocols.md 3)."""

from dataclasses import dataclass, field
from typing import NamedTuple

from frostline_contract.plan import Plan
from frostline_controller.members.membership import Membership
from frostline_controller.run.facts import RunFacts
from frostline_proto.v1 import control_pb2 as pb

ENTERED_WAIT_SECONDS = 2.0
"""Wait for Ready(entered), which has the exact step of the switch, after the first heartbeat of the new generation."""


class Window(NamedTuple):
    """The freeze point and decision number of a plan, and the first and last step whose vote may switch to the plan."""

    freeze_point: int
    decision_number: int
    first: int
    until: int


def open_window(facts: RunFacts, not_before: int = 0) -> Window:
    """Return the window of a plan that is made now; the window may be empty.

    The plan names the newest decision. Votes may switch from the step at which that decision takes effect until the vote before
    the one that adopts the next decision, and never at the run's last step.

    Args:
        facts: of the run, whose identity is known.
        not_before: the first step at which the switch may happen.
    """
    assert facts.calendar is not None
    timeline = [decision for decision in facts.surviving() if not decision.void]
    newest = timeline[-1] if timeline else None
    first = max(facts.step + 1, newest.effective_step if newest else 1, not_before)
    following = facts.calendar.due_after(first)
    until = facts.total_steps - 1
    if facts.calendar.effective_step(following) <= facts.total_steps:
        until = min(until, facts.calendar.effective_step(following) - 2)
    return Window(facts.freeze_point_under(newest), newest.number if newest else 0, first, until)


@dataclass
class Preparation:
    """The members' answers to the prepared plan. Their vote alone decides whether they switch to it.

    Attributes:
        since: when the plan was made, by the run's clock.
        ready: preparation seconds, by worker.
        taken_back: by worker that is ready no more, the step that it reported as committed; the next vote may still count it as
            ready.
        entered: step of the switch, and seconds that entering took, by worker.
        entered_at: when the first heartbeat of the new generation was received; None: none was.
        announced: ReadyNotice was sent, so that a vote may switch; also true after a restart, since a predecessor may have sent
            it.
        notice_sent: this controller has sent ReadyNotice.
        sent: this controller has sent the plan.
        withdrawn: why the plan was withdrawn; empty: the plan was not.
        cause: the kind of the switch's event.
    """

    since: float
    ready: dict[str, float] = field(default_factory=dict)
    taken_back: dict[str, int] = field(default_factory=dict)
    entered: dict[str, tuple[int, float]] = field(default_factory=dict)
    entered_at: float | None = None
    announced: bool = False
    notice_sent: bool = False
    sent: bool = False
    withdrawn: str = ""
    cause: str = "reshape"

    def take(self, worker_id: str, request: pb.ReadyRequest) -> None:
        """Take a worker's message that it is ready, is ready no more, or has entered."""
        if request.entered:
            self.entered[worker_id] = (request.step, request.seconds)
        elif request.ready:
            self.ready[worker_id] = request.seconds
            self.taken_back.pop(worker_id, None)
        else:
            self.ready.pop(worker_id, None)
            self.taken_back[worker_id] = request.step  # the worker's own report; steps in heartbeats are older

    def switched_at(self, plan: Plan, members: Membership, recorded: int | None, now: float) -> int | None:
        """Return the step whose vote switched to the plan; None while no switch is known.

        Args:
            plan: the prepared plan.
            members: the workers, with the generations that their heartbeats name.
            recorded: the plan's first step in the step records; None: there is none.
            now: seconds by the run's clock.
        """
        if self.entered:
            return max(step for step, _ in self.entered.values())
        if recorded is not None:
            return recorded - 1
        inside = [
            worker.step
            for worker_id in plan.participants
            if (worker := members.get(worker_id)) is not None and worker.generation == plan.generation
        ]
        if not inside:
            return None
        self.entered_at = self.entered_at or now
        if now - self.entered_at < ENTERED_WAIT_SECONDS:
            return None
        return max(plan.switch_from, min(plan.switch_until, min(inside)))

    def has_expired(self, plan: Plan, base: Plan, members: Membership) -> bool:
        """Whether the plan has expired: no vote of `base` has switched to it and none will (docs/protocols.md 4.2)."""
        if self.withdrawn and not self.announced:
            return True
        for worker_id in base.placement.workers:
            worker = members.get(worker_id)
            if worker is None or worker.generation != base.generation:
                continue
            if worker.step > plan.switch_until:
                return True
            taken_back = self.taken_back.get(worker_id)
            if self.withdrawn and taken_back is not None and worker.step > taken_back + 1:
                return True
        return False
