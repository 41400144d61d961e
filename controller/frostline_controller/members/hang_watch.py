"""Watches the members of the running generation for hangs. A member that hangs is asked for its stacks and excluded.

The exclusion waits neither for the stacks nor for the kill: `Failures` makes a plan without the worker, which fences the worker,
and deletes its pod afterwards.
"""

import logging
from collections import deque
from dataclasses import dataclass, replace

from frostline_contract.phases import WAITING, Phase
from frostline_contract.plan import GenerationId, Plan
from frostline_controller.members.entry import EntryWatch
from frostline_controller.members.hangs import DevicePlace, MemberProgress, Verdict, judge
from frostline_controller.members.membership import Worker
from frostline_controller.members.removal import Removals
from frostline_controller.recovery.driver import Failures
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

STACK_LEAD_SECONDS = 0.5
"""How long before its deadline a suspect is asked for its stacks; at most a tenth of the shortest deadline."""
STACK_WAIT_SECONDS = 1.5
"""How long the event waits for the stacks after the verdict. A frozen process sends none."""
STOOD_STILL_SECONDS = 5.0
"""A longer time between two checks means that this process stood still, perhaps with the whole machine. The gap does not count
towards the age of any member's phase."""
HELD_OFF_SECONDS_MAX = 20.0
"""How long short gaps may put a judgement off, where one follows the other."""
GAPS_KEPT = 8
BEATS_UNTIL_SILENT = 4
LEAST_SILENCE_SECONDS = 1.0


@dataclass
class _Hang:
    """A verdict whose event is not written yet."""

    verdict: Verdict
    name: str
    due: float


class HangWatch:
    """Judges in every round of the reconciler, and keeps the stacks of suspects until the verdict's event is written.

    Args:
        facts, outbox: the run's.
        failures: told of hangs, and of members that are gone.
        removals: deletes the pods of workers that hang outside the running generation.
        entry: which members have entered the generation.
    """

    def __init__(self, facts: RunFacts, outbox: Outbox, failures: Failures, removals: Removals, entry: EntryWatch) -> None:
        self._facts, self._outbox, self._failures, self._removals = facts, outbox, failures, removals
        self._entry = entry
        self._generation: GenerationId | None = None
        self._since = facts.clock()
        self._looked_at = self._last_judged = self._judge_from = facts.clock()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS_KEPT)
        self._asked: set[tuple[str, str, int]] = set()
        self._stacks: dict[str, str] = {}
        self._unannounced: list[_Hang] = []

    @property
    def silent_after_seconds(self) -> float:
        """Seconds without a heartbeat after which a member is silent: several heartbeats, and far less than for being gone."""
        return max(LEAST_SILENCE_SECONDS, BEATS_UNTIL_SILENT * self._facts.job.controller.heartbeat_seconds)

    def note_stack(self, event: pb.RunEvent) -> None:
        """Keep the stacks that a suspect has sent."""
        worker_id = event.detail.get("worker", "")
        log.warning("stacks of a worker that seems to hang worker=%s\n%s", worker_id, event.detail.get("stack", ""))
        self._stacks[worker_id] = event.detail.get("stack", "")

    async def advance(self, now: float) -> None:
        """Judge once, where a generation runs or is being entered and no failure is being answered."""
        facts = self._facts
        await self._announce(now)
        now = facts.clock()  # a round may have stood still on its way here
        stood_still = self._stood_still(now)
        if stood_still or facts.current is None or facts.ended or self._failures.recovery is not None:
            return
        plan = self._plan_that_is_entered(facts.current)
        if plan.generation != self._generation:
            self._generation, self._since = plan.generation, now
            self._asked.clear()
        await self._take_stuck_away()
        if not self._all_there(plan):
            return
        if not self._anybody_moves(plan, now):
            self._judge(plan, self._members(plan, now), now)

    def _stood_still(self, now: float) -> bool:
        """Whether this process stood still until just now, so that what it knows of the members is older than it looks.

        Heartbeats lie unread then, and where the whole machine stood still, the first ones say how long that was. So nobody is
        judged until the next ones have come; but where it goes on like that, for no longer than HELD_OFF_SECONDS_MAX.
        """
        seconds, self._looked_at = now - self._looked_at, now
        if seconds > STOOD_STILL_SECONDS:
            self._gaps.append((now - seconds, now))
        if seconds > LEAST_SILENCE_SECONDS and now - seconds - self._last_judged <= HELD_OFF_SECONDS_MAX:
            self._judge_from = now + 2 * self._facts.job.controller.heartbeat_seconds
        if now < self._judge_from:
            return True
        self._last_judged = now
        return False

    def _plan_that_is_entered(self, current: Plan) -> Plan:
        """Return the plan whose participants are judged: the current plan, or the prepared one while members of its base enter
        it.

        Members that enter the prepared plan may wait for its joiners. Members that still enter the current one do not: a joiner
        that is gone is no loss to them.
        """
        prepared = self._facts.state.prepared
        if prepared is None or prepared.base != current.generation or self._entry.is_under_way:
            return current
        base = [self._facts.members.get(worker_id) for worker_id in current.placement.workers]
        switched = any(worker is not None and worker.phase == Phase.RESHAPE for worker in base)
        return prepared if switched else current

    async def _take_stuck_away(self) -> None:
        """Remove workers that still hang in a generation that is over, whose exclusion an earlier controller did not finish."""
        floor = self._facts.job.controller.hang_floor_seconds
        for worker in self._facts.left_behind():
            if worker.phase_seconds > floor:
                where = f"{worker.phase} of generation {worker.generation}, which is over"
                reason = f"it hangs in {where}, for {worker.phase_seconds:.1f} s"
                log.error("stuck worker taken away worker=%s pod=%s reason=%r", worker.worker_id, worker.pod_name, reason)
                await self._removals.take_away(worker.worker_id, reason)

    def _all_there(self, plan: Plan) -> bool:
        """Whether all members are present. Where one is gone (a failure of its own), the others wait for it, and none hangs."""
        members = self._facts.members
        if loss := self._facts.loss_among(plan.placement.workers, members.dead_after_seconds):
            self._failures.fail(loss)
        return all(members.is_alive(worker_id) for worker_id in plan.placement.workers)

    def _anybody_moves(self, plan: Plan, now: float) -> bool:
        """Whether some member clearly still moves, so that `judge` need not be called: a cheap check, true in nearly every
        round."""
        ahead, silent_after = self._stack_lead_seconds, self.silent_after_seconds
        return any(
            worker.phase not in WAITING
            and now - worker.last_received <= silent_after
            and worker.phase_seconds + ahead < silent_after
            for worker_id in plan.placement.workers
            if (worker := self._facts.members.get(worker_id)) is not None
        )

    @property
    def _stack_lead_seconds(self) -> float:
        return min(STACK_LEAD_SECONDS, 0.1 * self._facts.job.controller.hang_floor_seconds)

    def _judge(self, plan: Plan, members: list[MemberProgress], now: float) -> None:
        floor, step_seconds = self._facts.job.controller.hang_floor_seconds, plan.placement.predicted_step_seconds
        verdict = judge(members, floor, self.silent_after_seconds, step_seconds)
        if verdict is None:
            ahead = self._stack_lead_seconds
            older = [replace(member, phase_seconds=member.phase_seconds + ahead) for member in members]
            suspicion = judge(older, floor, self.silent_after_seconds, step_seconds)
            if suspicion is not None:
                self._ask(suspicion, plan)
            return
        self._ask(verdict, plan)
        log.error("hang worker=%s phase=%s step=%s reason=%r", verdict.worker_id or "all", verdict.phase, verdict.step,
                  verdict.reason)  # fmt: skip
        worker = self._facts.members.get(verdict.worker_id)
        self._unannounced.append(_Hang(verdict, worker.pod_name if worker else "", now + STACK_WAIT_SECONDS))
        if verdict.worker_id:
            self._failures.exclude(verdict.worker_id, verdict.reason)
        else:
            self._failures.fail(verdict.reason)

    def _ask(self, verdict: Verdict, plan: Plan) -> None:
        """Ask the suspect for its stacks (or all members, where none is behind another), once for each place of a suspect."""
        suspects = (verdict.worker_id,) if verdict.worker_id else plan.placement.workers
        for worker_id in suspects:
            key = (worker_id, verdict.phase, verdict.step)
            if key not in self._asked:
                self._asked.add(key)
                self._stacks.pop(worker_id, None)
                self._outbox.streams.send(worker_id, pb.WatchPlanResponse(stack=pb.StackNotice(reason=verdict.reason)))

    async def _announce(self, now: float) -> None:
        """Write one event for each verdict, as soon as the stacks have come or are overdue."""
        waiting = []
        for hang in self._unannounced:
            verdict = hang.verdict
            if now < hang.due and verdict.worker_id not in self._stacks:
                waiting.append(hang)
                continue
            stack = self._stacks.pop(verdict.worker_id, "")
            detail = {"worker": verdict.worker_id, "pod": hang.name, "phase": verdict.phase,
                      "deadline_seconds": round(verdict.deadline, 6), "stack": stack}  # fmt: skip
            await self._outbox.event("hang", verdict.reason, verdict.seconds, step=verdict.step, detail=detail)
        self._unannounced = waiting

    def _members(self, plan: Plan, now: float) -> list[MemberProgress]:
        """The progress of the participants that this plan still needs, comparable by place.

        Participants that have not entered yet: where the plan continues its base, members of the base are in the base's last
        step, and joiners count as far as the furthest of these. Otherwise all count as at the start. Leavers are left out as soon
        as they are spare workers, or all others have entered.
        """
        facts = self._facts
        workers = [facts.members.get(worker_id) for worker_id in plan.participants]
        known = [worker for worker in workers if worker is not None and facts.members.is_alive(worker.worker_id)]
        continues = plan.start == "continue"
        base = {worker.worker_id: worker.step for worker in known if continues and worker.generation == plan.base}
        furthest = max(base.values(), default=0)
        members = [worker for worker in known if worker.worker_id not in plan.leavers]
        all_inside = all(worker.generation == plan.generation for worker in members)
        found = []
        for worker in known:
            entered = worker.generation == plan.generation
            if worker.worker_id in plan.leavers and (worker.phase == Phase.SPARE or all_inside):
                continue
            step = worker.step if entered else base.get(worker.worker_id, furthest)
            found.append(self._progress(worker, entered, step, now, ready=continues and not entered))
        return found

    def _progress(self, worker: Worker, entered: bool, step: int, now: float, ready: bool) -> MemberProgress:
        """Return a participant's progress.

        Args:
            worker: the participant.
            entered: whether it runs the generation already.
            step: its last committed step.
            now: the time by the run's clock.
            ready: whether it has formed the plan's groups, as all have before a switch.
        """
        reported_at = worker.phase_reported_at

        def age(seconds: float) -> float:
            since = reported_at - seconds
            if not entered:  # time before the plan was known does not count
                since = max(since, self._since)
            gaps = sum(max(0.0, min(reported_at, end) - max(since, start)) for start, end in self._gaps)
            return max(0.0, reported_at - since - gaps)

        behind = DevicePlace(worker.device_phase, age(worker.device_seconds), worker.device_waiting)
        return MemberProgress(
            worker_id=worker.worker_id, entered=entered, step=step, phase=worker.phase, phase_seconds=age(worker.phase_seconds),
            waiting=worker.waiting_seconds > 0, p99=worker.phase_p99, heartbeat_age=now - worker.last_received,
            name=f"worker {worker.pod_name}", device=behind if worker.device_phase else None,
            ready=ready,
        )  # fmt: skip
