"""The triggers of a new placement, and their urgency: decisions, joins, leaves, commands and scheduled reshapes."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from frostline_contract.job.cluster import ScheduledReshape
from frostline_contract.lineage import ROLLBACK
from frostline_contract.mesh import Mesh, in_words
from frostline_contract.plan import GenerationId, Placement
from frostline_controller.decisions.by_command import request_in_words
from frostline_controller.members.membership import Worker
from frostline_controller.planner.adapter import Choice
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.planner.verdict import differ
from frostline_controller.reshape.preparation import open_window
from frostline_controller.reshape.two_phase import Reshaping
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.pinned import PinnedShape
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)

MARGIN_STEPS = 2
"""Steps that the workers may be ahead of the newest progress that the controller knows."""


class Joins:
    """The times of reshapes for joiners: one reshape for all that come within `settle_seconds` of each other, and no two within
    `pause_seconds`, so that frequent joins do not stop progress. Times are by the run's clock."""

    SETTLES_MAX = 4
    """Most settling times to wait for a stream of joiners."""

    def __init__(self, settle_seconds: float, pause_seconds: float) -> None:
        self.settle_seconds, self.pause_seconds = settle_seconds, pause_seconds
        self._first: float | None = None
        self._newest = self._tried = float("-inf")

    def note(self, now: float) -> None:
        """Note that a worker has joined."""
        self._first = now if self._first is None else self._first
        self._newest = now

    def due_at(self, complete: bool) -> float:
        """Return when a reshape for joiners alone may be tried.

        Args:
            complete: whether all workers that the run wants are there, so that there is no settling time.
        """
        first = self._newest if self._first is None else self._first
        settle_seconds = 0.0 if complete else self.settle_seconds
        settled = min(self._newest + settle_seconds, first + self.SETTLES_MAX * settle_seconds)
        return max(settled, self._tried + self.pause_seconds)

    def tried(self, now: float) -> None:
        """Note that a plan with all present workers was prepared."""
        self._first, self._tried = None, now


@dataclass(frozen=True)
class _Prepared:
    """The request that a plan was prepared for, with the kind of its event and the generation that ran then."""

    wish: str
    cause: str
    base: GenerationId


class ReshapeTriggers:
    """Keeps the request for a new placement until a plan for it is prepared, or the planner finds that no change pays.

    The request for a shape (by a command or the job's schedule) is durable, with the pinned shape, and is kept until a vote has
    switched to the shape or an event has said why not: a plan that is dropped is made again.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, choosing: PlanChoice, reshaping: Reshaping) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._choosing, self._reshaping = choosing, reshaping
        self._reported: PinnedShape | None = None
        self.wish = ""
        self._wishes = 0
        self._cause = "reshape"
        self._deferred_to = 0
        self._patient = False
        self._prepared_for: _Prepared | None = None
        section = facts.job.controller
        self._joins = Joins(section.join_settle_seconds, section.join_pause_seconds)

    def _ask_for_dropped(self) -> None:
        """Ask again for what a plan was prepared for, where it is gone and the plan before it still runs: somebody wants to
        leave, has joined, or the job has changed. At once for leavers, else after a pause, as for joiners."""
        prepared, current = self._prepared_for, self._facts.current
        if prepared is None or self._reshaping.busy:
            return
        self._prepared_for = None
        if current is not None and current.generation == prepared.base and not self.wish:
            self.ask(prepared.wish, prepared.cause, patient=not _has_leavers(current.placement, self._facts.available()))

    def note_joined(self, wish: str) -> None:
        """Note that there is a new worker that could be a member."""
        self._joins.note(self._facts.clock())
        self.ask(wish, "join", patient=True)

    def ask(self, wish: str, cause: str = "reshape", patient: bool = False) -> None:
        """Request a new placement.

        Args:
            wish: the reason, in words.
            cause: the kind of the switch's event.
            patient: whether the request concerns only workers outside the shape and may wait. A plan for an urgent request
                includes these workers too.
        """
        self._patient = patient and (self._patient or not self.wish)
        if not self.wish or cause != "reshape":
            self._cause = cause
        self.wish = wish
        self._wishes += 1
        self._deferred_to = 0

    async def advance(self) -> None:
        """Prepare a plan where one is requested, no other is prepared, and the window is open long enough."""
        facts = self._facts
        await self._take_scheduled()
        self._ask_again()
        self._ask_for_dropped()
        if not self.wish or self._reshaping.busy or facts.current is None or facts.step < self._deferred_to:
            return
        if facts.awaited() or self._rollback_pending() or (self._patient and self._is_early()):
            return
        not_before = facts.state.pinned.from_step if facts.state.pinned else 0
        freeze_point, _, first, until = open_window(facts, not_before)
        if facts.step + MARGIN_STEPS >= facts.total_steps:
            self.wish = ""
            return
        if until < max(first, facts.step + MARGIN_STEPS):
            self._deferred_to = until + 1
            return
        answering = self._wishes
        choice = await self._choice(freeze_point, first)
        await self._answer_pinned(choice, freeze_point)
        if choice is None or not choice.pays:
            if choice is not None:
                log.info("no reshape wish=%r reason=%r", self.wish, choice.reason)
            self._answered(answering)
            return
        choice = Choice(choice.placement, True, f"{self.wish}; {choice.reason}")
        if not await self._reshaping.prepare(choice, not_before, self._kind_of(choice.placement, facts.current.placement)):
            self._deferred_to = until + 1
            return
        self._prepared_for = _Prepared(self.wish, self._cause, facts.current.generation)
        self._answered(answering)
        self._joins.tried(facts.clock())

    def _kind_of(self, chosen: Placement, current: Placement) -> str:
        """Return the kind of the switch's event: a plan that names no new worker is no "join", though one had asked for it."""
        return "reshape" if self._cause == "join" and set(chosen.workers) <= set(current.workers) else self._cause

    def _answered(self, wishes: int) -> None:
        """Clear the request that the planner has answered, unless another one came while it planned or the plan was written."""
        if self._wishes == wishes:
            self.wish = ""

    def _is_early(self) -> bool:
        """Whether more workers may join soon."""
        complete = len(self._facts.available()) >= self._choosing.wanted_workers()
        return self._facts.clock() < self._joins.due_at(complete)

    async def _choice(self, freeze_point: int, step: int) -> Choice | None:
        """Return the planner's choice; mandatory changes (a command, a leaving member, reshape_every_freeze, a changed job) pay
        in any case."""
        facts = self._facts
        current = facts.current
        assert current is not None
        workers = facts.available()
        try:
            choice = await self._choosing.choose(workers, freeze_point, current.placement, step)
        except ValueError as error:
            log.warning("no placement wish=%r reason=%s", self.wish, error)
            facts.message = str(error)
            return None
        commanded = _is_commanded(facts.state.pinned, choice.placement, current.placement, freeze_point)
        frozen = facts.job.placement.reshape_every_freeze and freeze_point != current.freeze_point
        differs = differ(choice.placement, current.placement)
        due = _has_leavers(current.placement, workers) or frozen or (commanded and differs) or facts.behind(current)
        reason = choice.reason if due or not choice.verdict else f"{choice.verdict}; {choice.reason}"
        return Choice(choice.placement, (choice.pays and differs) or due, reason, choice.verdict)

    async def pin(self, shape: PinnedShape, reshapes_done: int | None = None) -> None:
        """Make the request for a shape durable, and ask for it; of another one that is still open, an event says that it is not
        made.

        Args:
            shape: the shape, with its request.
            reshapes_done: how many of the job's scheduled reshapes are taken up with this one; None: it is none of them.
        """
        before = self._facts.state.pinned
        done = self._facts.state.reshapes_done if reshapes_done is None else reshapes_done
        if before is not None and before.open_request != shape.open_request:
            await self._say_not_made(f"overtaken by {shape.open_request}")
        await self._store.commit(pinned=shape, reshapes_done=done)
        self.ask(shape.open_request)

    def _ask_again(self) -> None:
        """Ask for the pinned shape again where its request is open and no plan for it is left: it was dropped, or the controller
        that had asked has died."""
        pinned = self._facts.state.pinned
        if pinned is not None and pinned.open_request and not self.wish and not self._reshaping.busy:
            self.ask(pinned.open_request, patient=True)

    async def _answer_pinned(self, choice: Choice | None, freeze_point: int) -> None:
        """Close the request for a shape where the planner's answer is no plan for it: it is in force, or cannot be had.

        A shape that lacks workers stays pinned until they are there; one that the planner refuses does not.

        Args:
            choice: the planner's answer; None: it refused, and the status says why.
            freeze_point: the freeze point for which it was asked.
        """
        facts, pinned = self._facts, self._facts.state.pinned
        if pinned is None or not pinned.open_request:
            return
        kept: PinnedShape | None = pinned.answered
        needed, there = Mesh.of(pinned.degrees).size, len(facts.available())
        if choice is not None and choice.placement.degrees == pinned.degrees:
            if choice.pays:
                return
        elif pinned.freeze_point != freeze_point:
            await self._say_not_made(f"it was asked for at freeze point {pinned.freeze_point}, and that is {freeze_point} now")
        elif there < needed:
            await self._say_not_made(f"{there} of {needed} workers are there; when all are, at this freeze point, it is made")
        else:
            await self._say_not_made(choice.reason if choice is not None else facts.message)
            kept = None
        await self._store.commit(pinned=kept)

    async def _say_not_made(self, why: str) -> None:
        """Write why the open request for a shape, if there is one, is not carried out. Once, though the write behind it fails."""
        pinned = self._facts.state.pinned
        if pinned is not None and pinned.open_request and pinned is not self._reported:
            self._reported = pinned
            await self._outbox.event("command", f"{pinned.open_request}: not made, {why}")

    async def _take_scheduled(self) -> None:
        """Pin the shape of the job's next reshape as soon as the decision in force at its step is known.

        A request that is still open has until that step; then this one overtakes it.
        """
        facts, pinned = self._facts, self._facts.state.pinned
        to_come = _to_come(facts)
        if not to_come or facts.calendar is None or facts.current is None or self._reshaping.busy:
            return
        one = to_come[0]
        if pinned is not None and pinned.open_request and facts.step + 1 < one.step:
            return
        known = max((decision.number for decision in facts.surviving()), default=0)
        if facts.calendar.due_before(one.step) > known:
            return
        freeze_point = open_window(facts, one.step).freeze_point
        await self.pin(PinnedShape.of(one, freeze_point, _in_words(one), one.step), facts.state.reshapes_done + 1)

    def _rollback_pending(self) -> bool:
        """Whether a rollback is decided and its lineage has no record yet; meanwhile no vote can switch."""
        start = self._facts.state.lineages[-1]
        return start.kind == ROLLBACK and self._store.records.lineage < start.lineage


def _has_leavers(placement: Placement, available: Iterable[Worker]) -> bool:
    """Whether some member of a placement is not among the workers that a plan may name."""
    return not {worker.worker_id for worker in available}.issuperset(placement.workers)


def _is_commanded(pinned: PinnedShape | None, chosen: Placement, current: Placement, freeze_point: int) -> bool:
    """Whether a pinned shape makes the chosen placement mandatory: it holds at the freeze point, and is not there (any more).

    A shape that is there is no reason for further changes of the plan in it, unless a request for it is open still.
    """
    if pinned is None or pinned.freeze_point != freeze_point or pinned.degrees != chosen.degrees:
        return False
    return current.degrees != pinned.degrees or (bool(pinned.open_request) and not pinned.is_in(current))


def not_made(facts: RunFacts) -> list[str]:
    """Return the requests for a freeze point or a shape that are neither carried out nor answered, in words."""
    pinned, asked = facts.state.pinned, facts.state.forced_freeze_point
    freezing = [request_in_words(asked)] if asked >= 0 else []
    taken_up = [pinned.open_request] if pinned is not None and pinned.open_request else []
    return [*freezing, *taken_up, *map(_in_words, _to_come(facts))]


def _to_come(facts: RunFacts) -> list[ScheduledReshape]:
    """The job's scheduled reshapes that are not taken up yet, by step."""
    return sorted(facts.job.reshapes, key=lambda one: one.step)[facts.state.reshapes_done :]


def _in_words(one: ScheduledReshape) -> str:
    return f"reshape to {in_words(one.degrees)} scheduled at step {one.step}"
