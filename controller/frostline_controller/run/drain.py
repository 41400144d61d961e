"""The drain: all members are asked to save a checkpoint and stop; the members of each new generation are asked again."""

import logging

from frostline_contract.run_status import RunStatus
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class Drain:
    """Asks members to save and stop: at a person's request, or for a pause, where too few workers would stay."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._asked: object = None
        self._missed = False

    @property
    def reason(self) -> str:
        """Why the members have been asked to stop; empty where they have not."""
        state = self._facts.state
        return (state.message or "drain") if state.state == RunStatus.DRAINING else ""

    async def ask(self, reason: str, cancelled: bool = False) -> bool:
        """Ask all members for a checkpoint at a step boundary.

        Members that have not yet connected to a new leader are asked when they do, and waited for as long as lost workers are.

        Args:
            reason: in words, for the log and the members.
            cancelled: whether the run ends as cancelled; so does a drain that was asked for before, and one asked for afterwards.

        Returns:
            Whether there is any member to ask; without one the run stops where it is.
        """
        facts = self._facts
        cancelled = cancelled or facts.state.cancelled
        await self._store.commit(state=RunStatus.DRAINING, message=reason, paused=False, cancelled=cancelled)
        if self._nobody_is_left():
            return False
        self._missed = bool(facts.awaited())
        self._send_notices()
        log.info("draining step=%s reason=%r", facts.step, reason)
        return True

    async def pause(self, reason: str) -> None:
        """Pause the run, since members have to go and too few would stay.

        All members save a checkpoint at a step boundary; the run goes on from it by itself when enough workers are there. Does
        nothing where members have been asked to stop already: a drain at a person's request keeps its own end.
        """
        facts = self._facts
        if facts.ended or facts.state.state == RunStatus.DRAINING:
            return
        await self._store.commit(state=RunStatus.DRAINING, message=reason, paused=True)
        self._send_notices()
        log.warning("pausing step=%s reason=%r", facts.step, reason)

    @property
    def is_deserted(self) -> bool:
        """Whether some members were missing when the drain was asked for, and by now no member is left that could save."""
        return bool(self.reason) and self._missed and self._nobody_is_left()

    def ask_newcomers(self) -> None:
        """Ask the members of a generation that was formed after the request. Only members are asked: a worker that has
        received the request stops with whichever generation it runs."""
        current = self._facts.current
        if self.reason and current is not None and current.generation != self._asked:
            self._send_notices()

    def _send_notices(self) -> None:
        plan = self._facts.current
        if plan is not None:
            self._asked = plan.generation
            notice = pb.DrainNotice(reason=self.reason)
            self._outbox.streams.send_to(plan.placement.workers, pb.WatchPlanResponse(drain=notice))

    def _nobody_is_left(self) -> bool:
        """Whether no member is left that could save, and none is expected to connect."""
        facts = self._facts
        if facts.current is None:
            return True
        back_until = facts.started + facts.members.dead_after_seconds
        expected = facts.awaited() and facts.clock() < back_until
        return not expected and not any(facts.members.is_alive(worker) for worker in facts.current.placement.workers)
