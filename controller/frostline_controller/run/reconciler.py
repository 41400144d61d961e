"""The reconciler: the controller's only acting task. It works in rounds, on messages from workers and news from the cluster.

`ROUND`, at the end of this file, is the table of a round: each act, the run phases in which it is done, and why it has its place.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import ValidationError

from frostline_controller.recovery.plans import announce_gone
from frostline_controller.run.checkpoints import CheckpointsGone
from frostline_controller.run.controller import Controller
from frostline_controller.run.run_phase import (
    ENDED,
    EVERY,
    GOING_ON,
    IN_A_GENERATION,
    NOT_BETWEEN,
    PLANNABLE,
    RECOVERING,
    RUNNING,
    UNBROKEN,
    WAITING,
    RunPhase,
)

log = logging.getLogger(__name__)

CLUSTER_READ_SECONDS = 0.5
COALESCE_SECONDS, COALESCE_SECONDS_MAX = 0.005, 0.05
"""Least time between two rounds, so that a thousand messages a second do not become as many rounds."""
FLUSH_SECONDS = 0.1
"""Longest time for which the planner waits until a new decision has been sent to all workers: planning takes processor time
from sending."""
ROUNDS_SHARE = 0.25
"""Largest share of the event loop's time that rounds may take; the rest is for answering workers."""
ABSENT_SECONDS = 2.0
"""A longer time between two rounds means that this process stood still (a frozen node) and could receive no heartbeat."""
TICK_SECONDS = 0.25
"""Longest time between two rounds: deadlines are judged at least this often."""


class Reconciler:
    """Drives the parts of a leading controller, each in its turn. Nothing else changes the run's state.

    Attributes:
        parts: what the rounds drive.
    """

    def __init__(self, parts: Controller) -> None:
        self.parts, self._facts = parts, parts.run.facts
        self._stopped = self._held = False
        self._cluster_read_at = -1.0
        self._round_at = self._facts.clock()
        self._decided = self._facts.state.decisions[-1:]

    async def serve(self) -> None:
        """Run until `stop`. Raises Conflict where another controller has taken over."""
        while not self._stopped:
            self._facts.wake.clear()
            self._facts.hurry.clear()
            began = time.thread_time()
            try:
                try:
                    await self.round()
                except ValueError as error:  # the job cannot be carried out: the text has the reason
                    self._fail_by(error)
                    await self._settle_failure()
                await self.parts.run.store.events.flush()
            except OSError as error:
                log.error("the state cannot be written, trying again error=%s", error)
                await asyncio.sleep(TICK_SECONDS)
            pause = (time.thread_time() - began) / ROUNDS_SHARE
            await _set_within(self._facts.hurry, min(max(pause, COALESCE_SECONDS), COALESCE_SECONDS_MAX))
            await _set_within(self._facts.wake, TICK_SECONDS)

    def _fail_by(self, error: ValueError) -> None:
        """End the run as failed. A ValueError is the user's mistake, except where a file or a message could not be read."""
        unreadable = isinstance(error, (ValidationError, json.JSONDecodeError, UnicodeError))
        if unreadable:
            log.error("a round failed on something that cannot be read", exc_info=error)
        self.parts.ending.fail(f"{type(error).__name__}: {error}" if unreadable else str(error), user_mistake=not unreadable)

    async def _settle_failure(self) -> None:
        """End the run now: the act that failed comes perhaps before the end in each round, and would fail in each. Raises
        OSError."""
        try:
            await self.parts.ending.settle(self._facts.clock())
        except ValueError as error:
            log.error("the run's end cannot be written, trying again error=%s", error)
            await asyncio.sleep(TICK_SECONDS)

    def stop(self) -> None:
        """End `serve` after the round that is under way: what it is writing is written whole."""
        self._stopped = True
        self._facts.wake.set()

    # ---- one round

    @property
    def phase(self) -> RunPhase:
        """The run's phase at this moment. An act may change the phase for the acts after it."""
        facts = self._facts
        if facts.ended:
            return RunPhase.ENDED
        if self._held:
            return RunPhase.HELD
        if facts.current is None:
            return RunPhase.STARTING
        if facts.state.between:
            return RunPhase.BETWEEN
        if self.parts.failures.recovery is not None:
            return RunPhase.RECOVERING
        return RunPhase.DRAINING if self.parts.drain.reason else RunPhase.RUNNING

    async def round(self) -> None:
        """Carry out the table's acts in order; each one only if the run is then in one of the act's phases."""
        now, self._held = self._facts.clock(), False
        had_ended = self.phase == RunPhase.ENDED
        for act in ROUND:
            phase = self.phase
            if had_ended and phase != RunPhase.ENDED:
                return  # resumed by this round: the next one looks at the cluster before anything is planned
            if phase not in act.phases:
                continue
            try:
                await act.carry_out(self, now)
            except CheckpointsGone as gone:  # nothing is planned until they are back
                self._held = True
                await announce_gone(self._facts, self.parts.run.outbox, gone)

    async def observe(self, now: float) -> None:
        """Read the cluster if it may have changed. Workers whose pod has disappeared count as gone."""
        facts = self._facts
        if now - self._round_at > ABSENT_SECONDS:
            facts.members.excuse(now - self._round_at)
        self._round_at = now
        if now - self._cluster_read_at < CLUSTER_READ_SECONDS and not self.parts.run.pods.changed():
            return
        await self.parts.run.pods.reread()
        self._cluster_read_at = now
        await self.parts.profiling.advance()
        self.parts.departures.note_lost_pods(registered_before=now - 2 * CLUSTER_READ_SECONDS)

    async def give_up_crash_loop(self, now: float) -> None:
        """Fail the run where its retry budget is used up."""
        if why := self.parts.failures.crash_loop:
            self.parts.ending.fail(why, crash_loop=True)

    async def ask_for_decided(self, now: float) -> None:
        """Ask the planner again after a decision was taken or taken back, once that decision has been sent to all workers."""
        if (newest := self._facts.state.decisions[-1:]) != self._decided:
            self._decided = newest
            await self.parts.run.outbox.streams.flushed(FLUSH_SECONDS)
            self.parts.adapting.ask(f"decision {newest[0].number}" if newest else "a decision was taken back")

    async def watch_generation(self, now: float) -> None:
        """Note a failure of the generation where a member is gone, or has not entered in time."""
        if late := await self.parts.entry.advance(now):
            self.parts.failures.fail(late)
        self.parts.failures.watch_members()

    async def start_generation(self, now: float) -> None:
        """Start a generation if its workers are there. A failure of the previous generation no longer needs an answer."""
        self.parts.failures.forget()
        await self.parts.first_plan.advance(now)

    async def learn_switch(self, now: float) -> None:
        """Find out whether training has switched to the prepared plan. If so, workers outside that plan may exit."""
        if (plan := await self.parts.reshaping.learn(now)) is not None:
            self.parts.departures.release(set(plan.placement.workers))

    async def forget_prepared(self, now: float) -> None:
        """Drop the prepared plan where a plan that needs no vote has replaced it, and ask the planner again."""
        if self.parts.reshaping.forget():
            self.parts.adapting.ask("after the recovery")

    async def settle_leavers(self, now: float) -> None:
        """Release the workers that want to leave, as soon as all members have entered."""
        if self.parts.entry.just_entered:
            await self.parts.departures.settle()
            self.parts.entry.just_entered = False


@dataclass(frozen=True)
class Act:
    """One act of a round.

    Attributes:
        carry_out: carries out the act at a time by the run's clock.
        phases: phases of the run in which the act is carried out.
        why: the reason for the act's place in the order.
    """

    carry_out: Callable[[Reconciler, float], Awaitable[None]]
    phases: frozenset[RunPhase]
    why: str


ROUND = (
    Act(Reconciler.observe, EVERY, "every later act relies on the current list of pods"),
    Act(lambda r, now: r.parts.departures.advance(now), EVERY, "no later act may plan with a worker that is known to be gone"),
    Act(lambda r, now: r.parts.run.outbox.send_noted(), EVERY, "events noted by RPC calls are older than those of this round"),
    Act(lambda r, now: r.parts.failures.announce_wrong_bits(), EVERY,
        "of a durable plan that another controller made, or whose announcement failed: told before anything is planned"),
    Act(lambda r, now: r.parts.start_failures.advance(), EVERY, "may end the run, so before its outcome is settled"),
    Act(lambda r, now: r.parts.devices.advance(), EVERY, "a GPU in quarantine is in no plan of this round"),
    Act(Reconciler.give_up_crash_loop, EVERY, "may end the run, so before its outcome is settled"),
    Act(lambda r, now: r.parts.deciding.write_history(), EVERY, "the history must be complete before a run ends or pauses"),
    Act(Reconciler.learn_switch, UNBROKEN, "a run must end, or pause, in the generation that its members run"),
    Act(lambda r, now: r.parts.ending.settle(now), GOING_ON, "an outcome that is known counts before anything is planned"),
    Act(lambda r, now: r.parts.ending.leave(now), ENDED, "in the round that ended the run, or in a later one"),
    Act(lambda r, now: r.parts.commands.advance(), EVERY,
        "a person's command goes before the planner's wish; a command may also resume a run that has ended"),
    Act(lambda r, now: r.parts.following.advance(), GOING_ON, "decisions and plans of this round follow the changed job"),
    Act(lambda r, now: r.parts.deciding.advance(), GOING_ON, "plans name the newest decision, so it is taken first"),
    Act(Reconciler.ask_for_decided, GOING_ON, "right after the decisions, which the planner answers below"),
    Act(lambda r, now: r.parts.hang_watch.advance(now), NOT_BETWEEN,
        "a worker that hangs is excluded by the answer that this round may make"),
    Act(lambda r, now: r.parts.straggler_watch.advance(now), UNBROKEN,
        "after the hangs: while a member is missing, no member is judged to be slow"),
    Act(lambda r, now: r.parts.starting.announce(), GOING_ON,
        "a durable plan that could not be announced (an act failed) is announced before another is made"),
    Act(lambda r, now: r.parts.removals.advance(), PLANNABLE, "pods that an earlier round could not delete"),
    Act(lambda r, now: r.parts.silent_pods.advance(now), PLANNABLE, "after the departures, which give up silent workers"),
    Act(Reconciler.watch_generation, IN_A_GENERATION, "a failure found here is answered further below, in the same round"),
    Act(lambda r, now: r.parts.reshaping.advance(), RUNNING, "a prepared plan advances, or goes, before another is asked for"),
    Act(lambda r, now: r.parts.adapting.advance(), RUNNING, "at most one plan is prepared at a time, so after the previous one"),
    Act(lambda r, now: r.parts.sizing.advance(), RUNNING, "pods are handed back only while no plan is wanted or prepared"),
    Act(lambda r, now: r.parts.settling.advance(), WAITING, "before a first plan: no worker registers while a field is `auto`"),
    Act(Reconciler.start_generation, WAITING, "last of the plans: its announcement goes out before the planner is asked again"),
    Act(lambda r, now: r.parts.failures.advance(now), RECOVERING, "last of the plans too; failures were found above"),
    Act(Reconciler.forget_prepared, GOING_ON, "an answer, a first plan or a pause may have replaced the prepared plan"),
    Act(Reconciler.settle_leavers, GOING_ON, "after an answer to a failure, which still counts them as members"),
    Act(lambda r, now: r.parts.plug.advance(), GOING_ON, "planned faults hit the state that this round has made"),
    Act(lambda r, now: r.parts.cache_news.advance(), GOING_ON, "reports how the round's plan uses the cache"),
    Act(lambda r, now: r.parts.memory_cap.advance(), GOING_ON, "members of the round's plan may exceed their memory limit"),
    Act(lambda r, now: r.parts.bookkeeping.advance(now), GOING_ON, "the ledger follows the workers that came or left"),
    Act(lambda r, now: r.parts.publishing.advance(now), GOING_ON, "last: the status shows the results of the whole round"),
)  # fmt: skip
"""A round, in order. An act is skipped where the run, at the act's turn, is in none of the act's phases."""


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
