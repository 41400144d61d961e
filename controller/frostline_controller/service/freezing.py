"""Decisions: as soon as an interval's statistics are durable, its verdict is taken, written, and told to everyone."""

import asyncio
import logging

from frostline_contract.lineage import ROLLBACK, LineageStart
from frostline_contract.plan import Decision
from frostline_controller.deciding import check_job, decision_line, due_statistics, next_decision
from frostline_controller.service.announce import decision_message
from frostline_controller.service.run import Run
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class Deciding:
    """Takes each interval's decision once. `newest` changes whenever one was taken, so that the planner is asked again."""

    def __init__(self, run: Run, replayed: tuple[Decision, ...] | None) -> None:
        self._run = run
        self._replayed = replayed
        self._given_up: dict[tuple[int, int], str] = {}
        self._written: tuple[Decision, ...] | None = None

    def check(self) -> None:
        """Raise ValueError for mistakes in the job's freeze section; called once the run's identity is known."""
        run = self._run
        if run.identity is not None and run.calendar is not None:
            check_job(run.job, run.identity, run.calendar, self._replayed)

    async def restore(self) -> None:
        """Take up what a predecessor heard, and write what it could not any more."""
        for line in self._run.events.all():
            if line["kind"] == "decision_void":
                self._given_up[line["lineage"], int(line["detail"]["number"])] = line["reason"]
        await self._write_history()

    def note_void(self, event: pb.RunEvent) -> None:
        """The workers gave a decision up: it came too late, or has not come yet."""
        self._given_up[event.lineage, int(event.detail["number"])] = event.reason

    async def advance(self) -> None:
        """Take every decision that is due."""
        run = self._run
        await self._write_history()
        await self._mark_voids()
        if run.calendar is None or run.identity is None or run.current is None or run.ended:
            return
        while (statistics := due_statistics(run.statistics.all, run.state, run.calendar)) is not None:
            if run.calendar.effective_step(statistics[-1].number) > run.total_steps:
                break
            decision = await asyncio.to_thread(
                next_decision, run.job, run.identity, statistics, run.state, run.calendar, self._replayed
            )
            if self._is_taken(decision):
                # A decision is taken once; to take it again and again would help nobody.
                log.error("decision %s of lineage %s is due again, and it is taken already", decision.number, decision.decided_in)
                break
            await self._bind(decision)
            await self._mark_voids()
        await self._tell_effects()

    def _is_taken(self, decision: Decision) -> bool:
        return any(_key(one) == _key(decision) for one in self._run.state.decisions)

    async def _bind(self, decision: Decision) -> None:
        """Durable, then heard."""
        run = self._run
        changes: dict[str, object] = {"decisions": (*run.state.decisions, decision)}
        if decision.kind != "rollback":
            changes["forced_freeze_point"] = -1  # an operator's request waits until a decision of its own kind has taken it
        else:
            start = LineageStart(lineage=decision.lineage, starts_at_step=decision.rollback_to_step, kind=ROLLBACK)
            changes |= {
                "lineage": decision.lineage,
                "max_lineage": max(run.state.max_lineage, decision.lineage),
                "lineages": (*run.state.lineages, start),
            }
        await run.commit(**changes)
        run.streams.send_all(decision_message(decision))
        await self._write_history()
        log.info(
            "decision number=%s kind=%s freeze_point=%s effective_step=%s lineage=%s reason=%r",
            decision.number, decision.kind, decision.freeze_point, decision.effective_step, decision.lineage, decision.reason,
        )  # fmt: skip

    async def _write_history(self) -> None:
        """Bring plans.jsonl up to the durable state, whatever could not be written before. What a restore took back is void."""
        run = self._run
        decisions, written = run.state.decisions, run.plans.decisions
        if decisions is self._written:
            return
        durable = {_key(decision) for decision in decisions}
        undone = [
            {**line, "void": True}
            for key, line in written.items()
            if line["decision_kind"] == "rollback" and not line["void"] and key not in durable
        ]
        fresh = [one for one in decisions if _key(one) not in written or written[_key(one)]["void"] != one.void]
        await run.plans.append([*(decision_line(one) for one in fresh), *undone])
        self._written = decisions

    async def _mark_voids(self) -> None:
        """Decisions that the workers gave up are void, also those that are taken only now."""
        for decision in self._run.state.decisions:
            reason = self._given_up.get((decision.decided_in, decision.number))
            if reason is not None and not decision.void:
                await self._void(decision, reason)

    async def _void(self, decision: Decision, reason: str) -> None:
        run = self._run
        void = decision.model_copy(update={"void": True})
        changes: dict[str, object] = {"decisions": tuple(void if one is decision else one for one in run.state.decisions)}
        if void.kind == "rollback":
            lineages = tuple(start for start in run.state.lineages if start.lineage != void.lineage)
            changes |= {"lineages": lineages, "lineage": max(start.lineage for start in lineages)}
        await run.commit(**changes)
        await self._write_history()
        log.warning("decision void number=%s lineage=%s reason=%r", void.number, void.lineage, reason)

    async def _tell_effects(self) -> None:
        """An event for each rollback, and for each change of the freeze point once it is in force."""
        run = self._run
        for decision in run.state.decisions:
            at = decision.effective_step - 1
            if decision.kind == "rollback" and not decision.void and not run.events.holds("guard", at, decision.lineage):
                await run.event("guard", decision.reason, step=at, lineage=decision.lineage, freeze_point=decision.freeze_point)
        for decision in run.surviving():
            changed = decision.kind in ("freeze", "unfreeze") and not decision.void
            if not changed or decision.effective_step > run.step + 1:
                continue
            if not run.events.holds(decision.kind, decision.effective_step, decision.lineage):
                await run.event(
                    decision.kind,
                    decision.reason,
                    step=decision.effective_step,
                    lineage=decision.lineage,
                    freeze_point=decision.freeze_point,
                )


def _key(decision: Decision) -> tuple[int, int]:
    return decision.decided_in, decision.number
