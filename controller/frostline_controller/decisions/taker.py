"""The controller's part that makes decisions: once an interval's statistics are durable, it decides, writes and announces."""

import asyncio
import logging

from frostline_contract.lineage import ROLLBACK, LineageStart
from frostline_contract.plan import Decision
from frostline_controller.decisions.by_command import asked_again, request_in_words
from frostline_controller.decisions.initial import initial_freeze_reason
from frostline_controller.decisions.next_decision import check_job, decision_line, due_statistics, next_decision
from frostline_controller.decisions.policies.replay import check_calendar
from frostline_controller.decisions.surviving import key_of
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore
from frostline_controller.serving.announce import decision_message
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class DecisionTaker:
    """Makes each interval's decision once. `newest` changes with every decision, so that the planner is asked again."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, replayed: tuple[Decision, ...] | None) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._replayed = replayed
        self._given_up: dict[tuple[int, int], str] = {}
        self._written: tuple[Decision, ...] | None = None

    def check(self) -> None:
        """Raise ValueError for mistakes in the job's freeze section, and before a run starts where the run that it follows has
        another calendar; called once the run's identity is known."""
        facts = self._facts
        if facts.identity is None or facts.calendar is None:
            return
        check_job(facts.job, facts.identity, facts.calendar, self._replayed)
        if facts.current is None and facts.job.elastic.freeze:
            check_calendar(self._replayed or (), facts.calendar)

    async def restore(self) -> None:
        """Load the decisions that a previous controller has made, and write what it could not write any more."""
        for line in self._store.events.all():
            if line["kind"] == "decision_void":
                self._given_up[line["lineage"], int(line["detail"]["number"])] = line["reason"]
        await self.write_history()

    def note_void(self, event: pb.RunEvent) -> None:
        """Note that the workers gave a decision up, because it came too late or has not reached them yet."""
        self._given_up[event.lineage, int(event.detail["number"])] = event.reason

    async def advance(self) -> None:
        """Make every decision that is due."""
        facts, store = self._facts, self._store
        await self._mark_voids()
        if facts.calendar is None or facts.identity is None or facts.current is None or facts.ended:
            return
        while (statistics := due_statistics(store.statistics.all, facts.state, facts.calendar)) is not None:
            if facts.calendar.effective_step(statistics[-1].number) > facts.total_steps:
                break
            decision = await asyncio.to_thread(
                next_decision, facts.job, facts.identity, statistics, facts.state, facts.calendar, self._replayed
            )
            if self._is_taken(decision):
                # A decision is made once; making it again in every round would not help.
                log.error("decision %s of lineage %s is due again, and it is taken already", decision.number, decision.decided_in)
                break
            await self._bind(decision)
            await self._mark_voids()
        await self._announce_effects()

    def _is_taken(self, decision: Decision) -> bool:
        return any(key_of(one) == key_of(decision) for one in self._facts.state.decisions)

    async def _bind(self, decision: Decision) -> None:
        """Write a decision to the durable state, then announce it to the workers.

        An event says where the decision is not what a person has asked for.
        """
        facts, store, outbox = self._facts, self._store, self._outbox
        asked = facts.state.forced_freeze_point
        changes: dict[str, object] = {"decisions": (*facts.state.decisions, decision)}
        if decision.kind != "rollback":
            changes["forced_freeze_point"] = -1  # an operator's request waits until a decision of its own kind has taken it
        else:
            start = LineageStart(lineage=decision.lineage, starts_at_step=decision.rollback_to_step, kind=ROLLBACK)
            changes |= {
                "lineage": decision.lineage,
                "max_lineage": max(facts.state.max_lineage, decision.lineage),
                "lineages": (*facts.state.lineages, start),
            }
        await store.commit(**changes)
        outbox.streams.send_all(decision_message(decision))
        if decision.kind != "rollback" and asked not in (-1, decision.freeze_point):
            await outbox.event("command", f"{request_in_words(asked)}: not made, {decision.reason}")
        await self.write_history()
        log.info(
            "decision number=%s kind=%s freeze_point=%s effective_step=%s lineage=%s reason=%r",
            decision.number, decision.kind, decision.freeze_point, decision.effective_step, decision.lineage, decision.reason,
        )  # fmt: skip

    async def write_history(self) -> None:
        """Add to plans.jsonl the decisions of the durable state that it lacks; those that a restore has undone become void."""
        facts, store = self._facts, self._store
        decisions, written = facts.state.decisions, store.plans.decisions
        if decisions is self._written:
            return
        durable = {key_of(decision) for decision in decisions}
        undone = [
            {**line, "void": True}
            for key, line in written.items()
            if line["decision_kind"] == "rollback" and not line["void"] and key not in durable
        ]
        fresh = [one for one in decisions if key_of(one) not in written or written[key_of(one)]["void"] != one.void]
        await store.plans.append([*(decision_line(one) for one in fresh), *undone])
        self._written = decisions

    async def _mark_voids(self) -> None:
        """Mark the decisions that the workers gave up as void, also those that were made only afterwards."""
        for decision in self._facts.state.decisions:
            reason = self._why_given_up(decision)
            if reason is not None and not decision.void:
                await self._void(decision, reason)

    def _why_given_up(self, decision: Decision) -> str | None:
        """Why the workers gave a decision up; None where they did not.

        Workers name a decision by the lineage in which it was due: the one in which it was decided, or a later one in which it
        survives.
        """
        if (own := self._given_up.get(key_of(decision))) is not None:
            return own
        later = [why for (lineage, number), why in self._given_up.items()
                 if number == decision.number and lineage > decision.decided_in]  # fmt: skip
        if not later or decision.kind == "rollback":  # nearly always: a run may have a thousand decisions, and each round asks
            return None
        return later[0] if key_of(decision) in {key_of(one) for one in self._facts.surviving()} else None

    async def _void(self, decision: Decision, reason: str) -> None:
        facts, store = self._facts, self._store
        void = decision.model_copy(update={"void": True})
        changes: dict[str, object] = {"decisions": tuple(void if one is decision else one for one in facts.state.decisions)}
        if void.kind == "rollback":
            lineages = tuple(start for start in facts.state.lineages if start.lineage != void.lineage)
            changes |= {"lineages": lineages, "lineage": max(start.lineage for start in lineages)}
        elif key_of(decision) in {key_of(one) for one in facts.surviving()}:
            changes["forced_freeze_point"] = asked_again(facts.state.forced_freeze_point, [decision], facts.surviving())
        await store.commit(**changes)
        await self.write_history()
        log.warning("decision void number=%s lineage=%s reason=%r", void.number, void.lineage, reason)

    async def _announce_effects(self) -> None:
        """Write events: for the units frozen from step 1, each rollback, and each change of the freeze point once in force."""
        facts, store, outbox = self._facts, self._store, self._outbox
        await self._announce_initial()
        for decision in facts.state.decisions:
            at = decision.effective_step - 1
            if decision.kind == "rollback" and not decision.void and not store.events.holds("guard", at, decision.lineage):
                await outbox.event(
                    "guard", decision.reason, step=at, lineage=decision.lineage, freeze_point=decision.freeze_point
                )
        for decision in facts.surviving():
            changed = decision.kind in ("freeze", "unfreeze") and not decision.void
            if not changed or decision.effective_step > facts.step + 1:
                continue
            if not store.events.holds(decision.kind, decision.effective_step, decision.lineage):
                await outbox.event(
                    decision.kind,
                    decision.reason,
                    step=decision.effective_step,
                    lineage=decision.lineage,
                    freeze_point=decision.freeze_point,
                )

    async def _announce_initial(self) -> None:
        facts = self._facts
        assert facts.identity is not None
        reason = initial_freeze_reason(facts.job, facts.identity.num_units, facts.identity.tied)
        if reason and not self._store.events.holds("freeze", 1, 0):
            await self._outbox.event("freeze", reason, step=1, lineage=0, freeze_point=facts.initial_freeze_point)
