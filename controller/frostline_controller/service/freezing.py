"""Decisions: as soon as an interval's statistics are durable, its verdict is taken, written, and told to everyone."""

import asyncio
import logging

from frostline_contract.plan import Decision
from frostline_controller.deciding import check_job, decision_line, due_statistics, next_decision
from frostline_controller.service.announce import decision_message
from frostline_controller.service.run import Run
from frostline_controller.state.durable import LineageStart
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class Deciding:
    """Takes each interval's decision once. `newest` changes whenever one was taken, so that the planner is asked again."""

    def __init__(self, run: Run, replayed: tuple[Decision, ...] | None) -> None:
        self._run = run
        self._replayed = replayed
        self._voids: list[tuple[int, int, str]] = []

    def check(self) -> None:
        """Raise ValueError for mistakes in the job's freeze section; called once the run's identity is known."""
        run = self._run
        if run.identity is not None and run.calendar is not None:
            check_job(run.job, run.identity, run.calendar, self._replayed)

    async def restore(self) -> None:
        """Write to plans.jsonl what a predecessor made durable and could not write there any more."""
        written = {
            (line["lineage"], line["number"], line["decision_kind"] == "rollback", line["void"])
            for line in self._run.plans.lines()
            if line["kind"] == "decision"
        }
        missing = [
            decision
            for decision in self._run.state.decisions
            if (decision.lineage, decision.number, decision.kind == "rollback", decision.void) not in written
        ]
        await self._run.plans.append([decision_line(decision) for decision in missing])

    def note_void(self, event: pb.RunEvent) -> None:
        """The workers gave a decision up: it came too late."""
        number = int(event.detail.get("number", "0") or 0)
        if not number and self._run.calendar is not None:
            number = self._run.calendar.takes_effect_at(event.step) or self._run.calendar.takes_effect_at(event.step + 1) or 0
        self._voids.append((event.lineage, number, event.reason))

    async def advance(self) -> bool:
        """Take every decision that is due. True where one was taken."""
        run = self._run
        await self._mark_voids()
        if run.calendar is None or run.identity is None or run.current is None or run.ended:
            return False
        taken = False
        while (statistics := due_statistics(run.statistics.all, run.state, run.calendar)) is not None:
            if run.calendar.effective_step(statistics[-1].number) > run.total_steps:
                break
            decision = await asyncio.to_thread(
                next_decision, run.job, run.identity, statistics, run.state, run.calendar, self._replayed
            )
            if self._is_taken(decision):
                # A decision is taken once; to take it again and again would help nobody.
                log.error("decision %s of lineage %s is due again, and it is taken already", decision.number, decision.lineage)
                break
            await self._bind(decision)
            taken = True
        await self._tell_effects()
        return taken

    def _is_taken(self, decision: Decision) -> bool:
        key = (decision.lineage, decision.number, decision.kind == "rollback")
        return any((d.lineage, d.number, d.kind == "rollback") == key for d in self._run.state.decisions)

    async def _bind(self, decision: Decision) -> None:
        """Durable, then heard."""
        run = self._run
        changes: dict[str, object] = {"decisions": (*run.state.decisions, decision)}
        if decision.kind != "rollback":
            changes["forced_freeze_point"] = -1  # an operator's request waits until a decision of its own kind has taken it
        else:
            start = LineageStart(lineage=decision.lineage, starts_at_step=decision.rollback_to_step, kind="rollback")
            changes |= {
                "lineage": decision.lineage,
                "max_lineage": max(run.state.max_lineage, decision.lineage),
                "lineages": (*run.state.lineages, start),
            }
        await run.commit(**changes)
        run.streams.send_all(decision_message(decision))
        await run.plans.append([decision_line(decision)])
        log.info(
            "decision number=%s kind=%s freeze_point=%s effective_step=%s lineage=%s reason=%r",
            decision.number, decision.kind, decision.freeze_point, decision.effective_step, decision.lineage, decision.reason,
        )  # fmt: skip
        if decision.kind == "rollback":
            await run.event("guard", decision.reason, step=decision.effective_step - 1, freeze_point=decision.freeze_point)

    async def _mark_voids(self) -> None:
        run = self._run
        while self._voids:
            lineage, number, reason = self._voids.pop()
            found = [d for d in run.state.decisions if (d.lineage, d.number) == (lineage, number) and not d.void]
            if not found:
                continue
            void = found[-1].model_copy(update={"void": True})
            decisions = tuple(void if decision is found[-1] else decision for decision in run.state.decisions)
            changes: dict[str, object] = {"decisions": decisions}
            if void.kind == "rollback":
                lineages = tuple(start for start in run.state.lineages if start.lineage != void.lineage)
                changes |= {"lineages": lineages, "lineage": max(start.lineage for start in lineages)}
            await run.commit(**changes)
            await run.plans.append([decision_line(void)])
            log.warning("decision void number=%s lineage=%s reason=%r", number, lineage, reason)

    async def _tell_effects(self) -> None:
        """An event for each change of the freeze point, once it is in force."""
        run = self._run
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
