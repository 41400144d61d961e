"""The request to stop at a checkpoint: asked of all members, again of each new generation, until they have saved."""

import logging

from frostline_contract.run_status import RunStatus
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class Drain:
    """Asks members to save and stop: because a person wants it, or for a pause, since too few workers would stay."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._asked: object = None
        self._missed = False

    @property
    def reason(self) -> str:
        """Why members are asked to stop; empty where they are not."""
        state = self._facts.state
        return (state.message or "drain") if state.state == RunStatus.DRAINING else ""

    async def ask(self, reason: str) -> bool:
        """Ask all members for a checkpoint at a step boundary.

        Members that a new leader has not heard of yet are asked when they come back; none is waited for longer than for the dead.

        Returns:
            Whether somebody is there to be asked; without members the run just stops where it is.
        """
        facts = self._facts
        await self._store.commit(state=RunStatus.DRAINING, message=reason, paused=False)
        if self._nobody_is_left():
            return False
        self._missed = bool(facts.awaited())
        self._tell()
        log.info("draining step=%s reason=%r", facts.step, reason)
        return True

    async def pause(self, reason: str) -> None:
        """Members have to go and too few stay: all save a checkpoint at a step boundary, and the run goes on from it by itself.

        Does nothing where members are asked to stop already: a drain that a person asked for ends the run as it would without.
        """
        facts = self._facts
        if facts.ended or facts.state.state == RunStatus.DRAINING:
            return
        await self._store.commit(state=RunStatus.DRAINING, message=reason, paused=True)
        self._tell()
        log.warning("pausing step=%s reason=%r", facts.step, reason)

    @property
    def is_deserted(self) -> bool:
        """Whether members were asked of whom some were not there, and by now nobody can save."""
        return bool(self.reason) and self._missed and self._nobody_is_left()

    def ask_newcomers(self) -> None:
        """Ask the members of a generation that was made after a failure: they have not heard of it. A worker that has heard it
        stops with whatever generation it runs, so nobody outside hears it."""
        current = self._facts.current
        if self.reason and current is not None and current.generation != self._asked:
            self._tell()

    def _tell(self) -> None:
        plan = self._facts.current
        if plan is not None:
            self._asked = plan.generation
            notice = pb.DrainNotice(reason=self.reason)
            self._outbox.streams.send_to(plan.placement.workers, pb.WatchPlanResponse(drain=notice))

    def _nobody_is_left(self) -> bool:
        """No member is there that could save, and none is to be expected."""
        facts = self._facts
        if facts.current is None:
            return True
        back_until = facts.started + facts.members.dead_after_seconds
        expected = facts.awaited() and facts.clock() < back_until
        return not expected and not any(facts.members.is_alive(worker) for worker in facts.current.placement.workers)
