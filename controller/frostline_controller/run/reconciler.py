"""The reconciler: one task that acts, in rounds, on what has arrived by RPC and from the cluster.

`ROUND`, at the end, is the round: what is done, in which phases of the run, and why at that place.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import ValidationError

from frostline_controller.recovery.plans import tell_gone
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
"""A decision is on its way to all before the planner, in a thread, takes its share of the processor; waited for no longer."""
ROUNDS_SHARE = 0.25
"""Of the event loop's time at most so much goes to rounds that messages ask for: the rest answers workers."""
ABSENT_SECONDS = 2.0
"""A longer time between two rounds means that this process stood still (a frozen node): it could hear nobody."""
TICK_SECONDS = 0.25
"""Longest time between two rounds: deadlines are judged at least this often."""


class Reconciler:
    """Drives the parts of a leading controller, each in its turn; nothing else makes the run's state other than it is.

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
                await self.round()
                await self.parts.run.store.events.flush()
            except OSError as error:
                log.error("the state cannot be written, trying again error=%s", error)
                await asyncio.sleep(TICK_SECONDS)
            except ValueError as error:  # what the job asks for cannot be done: the text says what and why
                self._fail_by(error)
            pause = (time.thread_time() - began) / ROUNDS_SHARE
            await _set_within(self._facts.hurry, min(max(pause, COALESCE_SECONDS), COALESCE_SECONDS_MAX))
            await _set_within(self._facts.wake, TICK_SECONDS)

    def _fail_by(self, error: ValueError) -> None:
        """Most say what is wrong with the job. What cannot be read, of a file or a message, is no mistake of the user's."""
        unreadable = isinstance(error, (ValidationError, json.JSONDecodeError, UnicodeError))
        if unreadable:
            log.error("a round failed on something that cannot be read", exc_info=error)
        self.parts.ending.fail(f"{type(error).__name__}: {error}" if unreadable else str(error), user_mistake=not unreadable)

    def stop(self) -> None:
        """End `serve` after the round that is under way: what it is writing is written whole."""
        self._stopped = True
        self._facts.wake.set()

    # ---- one round

    @property
    def phase(self) -> RunPhase:
        """What is going on with the run at this moment; an act may change it for the acts after it."""
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
        """Do what is to be done in the run's phase, each act of the table in its turn."""
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
                await tell_gone(self._facts, self.parts.run.outbox, gone)

    async def observe(self, now: float) -> None:
        """Read the cluster where it may have changed; workers of a pod that is no longer there are gone."""
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
        """Recoveries no longer help: the run fails."""
        if why := self.parts.failures.crash_loop:
            self.parts.ending.fail(why, crash_loop=True)

    async def ask_for_decided(self, now: float) -> None:
        """A decision has been taken, or was taken back: the planner is asked again, once it is on its way to all."""
        if (newest := self._facts.state.decisions[-1:]) != self._decided:
            self._decided = newest
            await self.parts.run.outbox.streams.flushed(FLUSH_SECONDS)
            self.parts.adapting.ask(f"decision {newest[0].number}" if newest else "a decision was taken back")

    async def watch_generation(self, now: float) -> None:
        """Members that are gone, or late to enter, are a failure of the generation."""
        if late := await self.parts.entry.advance(now):
            self.parts.failures.fail(late)
        self.parts.failures.watch_members()

    async def start_generation(self, now: float) -> None:
        """The generation before is over, with whatever had befallen it: start one where the workers are there."""
        self.parts.failures.forget()
        await self.parts.first_plan.advance(now)

    async def learn_switch(self, now: float) -> None:
        """Training may have switched to the prepared plan; then those whom it leaves out may exit."""
        if (plan := await self.parts.reshaping.learn(now)) is not None:
            self.parts.departures.release(set(plan.placement.workers))

    async def forget_prepared(self, now: float) -> None:
        """A plan that is entered without a vote takes the prepared one's place."""
        if self.parts.reshaping.forget():
            self.parts.adapting.ask("after the recovery")

    async def settle_leavers(self, now: float) -> None:
        """All members have entered: those that want to leave are let go."""
        if self.parts.entry.just_entered:
            await self.parts.departures.settle()
            self.parts.entry.just_entered = False


@dataclass(frozen=True)
class Act:
    """One thing that a round does. why: why at its place in the order."""

    carry_out: Callable[[Reconciler, float], Awaitable[None]]
    phases: frozenset[RunPhase]
    why: str


ROUND = (
    Act(Reconciler.observe, EVERY, "all that follows judges by the pods that there are"),
    Act(lambda r, now: r.parts.departures.advance(now), EVERY, "nobody plans with a worker that is known to be gone"),
    Act(lambda r, now: r.parts.run.outbox.send_noted(), EVERY, "what calls have noted happened before what this round does"),
    Act(lambda r, now: r.parts.start_failures.advance(), EVERY, "may end the run, so before its outcome is settled"),
    Act(lambda r, now: r.parts.devices.advance(), EVERY, "a GPU in quarantine is in no plan of this round"),
    Act(Reconciler.give_up_crash_loop, EVERY, "may end the run, so before its outcome is settled"),
    Act(lambda r, now: r.parts.deciding.write_history(), EVERY, "a run ends, or waits, when its history has each decision"),
    Act(Reconciler.learn_switch, UNBROKEN, "a run that ends, or pauses, does so in the generation that its members run"),
    Act(lambda r, now: r.parts.ending.settle(now), GOING_ON, "an outcome that is known counts before anything is planned"),
    Act(lambda r, now: r.parts.ending.leave(now), ENDED, "after the round that ended the run, or in it"),
    Act(lambda r, now: r.parts.commands.advance(), EVERY,
        "a person's word counts before the planner's; a run that has ended is resumed by one"),
    Act(lambda r, now: r.parts.following.advance(), GOING_ON, "decisions and plans of this round are made by the changed job"),
    Act(lambda r, now: r.parts.deciding.advance(), GOING_ON, "plans name the newest decision, so it is taken first"),
    Act(Reconciler.ask_for_decided, GOING_ON, "right after the decisions, whose wish the planner answers below"),
    Act(lambda r, now: r.parts.hang_watch.advance(now), NOT_BETWEEN,
        "whoever hangs is excluded by the answer that this round may make"),
    Act(lambda r, now: r.parts.straggler_watch.advance(now), UNBROKEN,
        "after the hangs: among members of whom one is gone nobody is slow"),
    Act(lambda r, now: r.parts.starting.announce(), GOING_ON,
        "a plan that is durable and that nobody was told of, since an act failed, is told before another is made"),
    Act(lambda r, now: r.parts.removals.advance(), PLANNABLE, "pods that an earlier round could not delete"),
    Act(lambda r, now: r.parts.silent_pods.advance(now), PLANNABLE, "after the departures, which give up who is silent"),
    Act(Reconciler.watch_generation, IN_A_GENERATION, "a failure that is found now is answered in this round, below"),
    Act(lambda r, now: r.parts.reshaping.advance(), RUNNING, "a prepared plan goes on, or goes, before the next one is wanted"),
    Act(lambda r, now: r.parts.adapting.advance(), RUNNING, "at most one plan is prepared, so after the one that there was"),
    Act(lambda r, now: r.parts.sizing.advance(), RUNNING, "pods are handed back once no plan is wanted or prepared any more"),
    Act(lambda r, now: r.parts.settling.advance(), WAITING, "workers register with a whole job only, so before a first plan"),
    Act(Reconciler.start_generation, WAITING, "last of the plans: its announcement goes out before the planner is asked again"),
    Act(lambda r, now: r.parts.failures.advance(now), RECOVERING, "as the one above; it was found or reported before"),
    Act(Reconciler.forget_prepared, GOING_ON, "an answer, a first plan or a pause has overtaken the prepared plan"),
    Act(Reconciler.settle_leavers, GOING_ON, "an answer to a failure that came meanwhile has counted them as members"),
    Act(lambda r, now: r.parts.faults.advance(), GOING_ON, "planned faults befall what the round has made"),
    Act(lambda r, now: r.parts.cache_news.advance(), GOING_ON, "tells of the round's plan"),
    Act(lambda r, now: r.parts.memory_cap.advance(), GOING_ON, "members of the round's plan may hold more than they may"),
    Act(lambda r, now: r.parts.bookkeeping.advance(now), GOING_ON, "who has come or gone in this round has its account"),
    Act(lambda r, now: r.parts.publishing.advance(now), GOING_ON, "people read what the round has led to"),
)  # fmt: skip
"""A round: each act in its turn, where the run's phase is one of the act's when its turn comes."""


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
