"""Makes the plans that start a generation without a vote: from initial weights, from a checkpoint, or from survivors' state.

A plan is made durable first, then written to plans.jsonl with the facts from which it was computed, then announced.
"""

import asyncio
import logging
from pathlib import Path

from frostline_contract.lineage import RESTORE, LineageStart, Place
from frostline_contract.mesh import in_words
from frostline_contract.phases import ControllerPhase
from frostline_contract.plan import SURVIVORS, Decision, GenerationId, Plan
from frostline_contract.run_status import RunStatus
from frostline_controller.decisions.by_command import asked_again
from frostline_controller.decisions.surviving import History, in_force, key_of, surviving_decisions, without_pending_rollbacks
from frostline_controller.members.membership import Worker
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.planner.plans import entry_plan, survivors_plan
from frostline_controller.recovery.facts import Failure, GoOn, WrongBits
from frostline_controller.recovery.target import lineage_at
from frostline_controller.reshape.two_phase import CONTINUED_KEPT
from frostline_controller.run.checkpoints import CheckpointsGone, newest_before, newest_checkpoint
from frostline_controller.run.epochs import current_epoch, raise_epoch
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.gone import why_gone
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.plan_log import plan_end_line, plan_line
from frostline_controller.run.plug import RoundPlug
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)


class StartingPlans:
    """Makes the plans, with the planner's best placement of the usable workers."""

    def __init__(
        self, facts: RunFacts, store: RunStore, outbox: Outbox, plug: RoundPlug, choosing: PlanChoice, checkpoint_root: Path
    ) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._plug, self._choosing, self._root = plug, choosing, checkpoint_root

    async def finish_epoch(self) -> None:
        """Raise the run epoch where the current plan, perhaps a predecessor's, begins one that is not yet on disk.

        Done before the plan is announced. Raises CheckpointsGone.
        """
        current = self._facts.current
        if current is not None and (await asyncio.to_thread(current_epoch, self._root)).run_epoch < current.run_epoch:
            await self._check_not_gone()
            await asyncio.to_thread(raise_epoch, self._root, current)

    async def from_checkpoint(
        self, workers: list[Worker], reason: str, why_back: str = "", answers: dict[str, object] | None = None, *,
        epoch: bool = False, wrong_bits: WrongBits | None = None,
    ) -> Plan:  # fmt: skip
        """Make one plan for all `workers` that fit, from the newest complete checkpoint or from the initial weights.

        A checkpoint that is still being written is not waited for (docs/adr/0007-failure-model.md, "What is not promised").

        Args:
            workers: the usable workers.
            reason: why a generation starts, in words.
            why_back: after a failure, why no newer state is left.
            answers: the facts of the answer, for plans.jsonl.
            epoch: begin a new run epoch, since a generation may still run unseen.
            wrong_bits: ignore all results of the first wrong step and later ones, checkpoints included; None: ignore none.

        Raises:
            CheckpointsGone: the run's checkpoints are gone.
        """
        facts = self._facts
        assert facts.identity is not None
        if wrong_bits is None:
            found = await asyncio.to_thread(newest_checkpoint, self._root, facts.state.lineages)
        else:
            found = await asyncio.to_thread(newest_before, self._root, wrong_bits.first_step, facts.state.lineages)
        base = facts.current
        if found is None and wrong_bits is None:
            await self._check_not_gone()
        step = found.step if found else 0
        lineage = 0 if base is None and found is None else facts.state.next_lineage
        reached = found.lineage if found else 0
        history = self._branch(lineage, step, reached, distrusts=wrong_bits is not None) if lineage else self._history()
        decision = self._decision(history, step)
        freeze_point, number = facts.freeze_point_under(decision), decision.number if decision is not None else 0
        choice = await self._choosing.choose(workers, freeze_point, None, step)
        known_epoch = base.run_epoch if base is not None else (await asyncio.to_thread(current_epoch, self._root)).run_epoch
        back = f"{reason}: back to step {step}: {why_back}" if why_back else reason
        draft = self._choosing.draft(
            choice, lineage=lineage, freeze_point=freeze_point, decision_number=number, reason=f"{back}; {choice.reason}"
        )
        plan = self._choosing.stamped(await asyncio.to_thread(
            entry_plan, draft, base=base.generation if base else None,
            checkpoint=(found.path, found.step) if found else None, run_epoch=known_epoch + epoch,
        ))  # fmt: skip
        ends = [plan_end_line(base.generation, facts.step_of(base))] if base else []
        await self._commit(plan, history, ends, answers, wrong_bits)
        return plan

    async def _check_not_gone(self) -> None:
        """Raise CheckpointsGone where the checkpoint root is empty and should not be: then no plan is made, since the run must
        not silently start again at step 0."""
        if why := await asyncio.to_thread(why_gone, self._facts, self._store, self._root):
            raise CheckpointsGone(why)

    async def newer_checkpoint(self, failure: Failure, found: GoOn) -> int | None:
        """Return the step of a checkpoint that is newer than the survivors' state; None where there is none.

        There is such a checkpoint where all workers that had gone further are lost.
        """
        place = Place(lineage_at(failure, found.state), found.state.step)
        if found.state.step + 1 >= self._facts.step:
            return None
        checkpoint = await asyncio.to_thread(newest_checkpoint, self._root, self._facts.state.lineages)
        return checkpoint.step if checkpoint is not None and place < checkpoint.place else None

    async def from_survivors(
        self, failure: Failure, found: GoOn, workers: list[Worker], reason: str, answers: dict[str, object]
    ) -> Plan:
        """Make one plan for all `workers` that fit, with every piece at `found.state`."""
        facts, store, base = self._facts, self._store, failure.current
        lineage = lineage_at(failure, found.state)
        history = self._history().without_unstarted(lineage, store.records.lineage)
        decision = self._decision(history.until(lineage), found.state.step)
        latest = store.records.latest
        published = latest is not None and Place(lineage, found.state.step) < latest.place
        if published or not found.extends_all:
            history = self._branch(facts.state.next_lineage, found.state.step, lineage)
            lineage = facts.state.next_lineage
            decision = self._decision(history, found.state.step)
        freeze_point, number = facts.freeze_point_under(decision), decision.number if decision is not None else 0
        holding = {worker for piece in found.holders for worker in piece}
        ordered = sorted(workers, key=lambda worker: worker.worker_id not in holding)
        choice = await self._choosing.choose(ordered, freeze_point, None, found.state.step)
        branch = f", where lineage {lineage} begins" if lineage != lineage_at(failure, found.state) else ""
        why = f"{reason}: all units at step {found.state.step} from survivors{branch}; {choice.reason}"
        draft = self._choosing.draft(
            choice, lineage=lineage, freeze_point=freeze_point, decision_number=number, reason=why, others=holding
        )
        plan = self._choosing.stamped(await asyncio.to_thread(survivors_plan, draft, base=base, found=found))
        await self._commit(plan, history, self._ends(failure, found, facts.step_of(base)), answers)
        return plan

    def _history(self) -> History:
        return History(self._facts.state.decisions, self._facts.state.lineages)

    def _branch(self, lineage: int, step: int, reached: int, distrusts: bool = False) -> History:
        """Return the history with a new lineage that starts at `step`, from a state of lineage `reached`."""
        state = self._facts.state
        decisions, lineages = without_pending_rollbacks(state.decisions, state.lineages, reached, step)
        start = LineageStart(lineage=lineage, starts_at_step=step, kind=RESTORE, distrusts=distrusts)
        return History(decisions, (*lineages, start))

    def _asked_under(self, history: History) -> int:
        """Return the freeze point that a command asks for under a history: also that of a decision which is undone by it."""
        facts = self._facts
        assert facts.calendar is not None
        kept = surviving_decisions(history.decisions, history.lineages, facts.calendar)
        still = {key_of(one) for one in kept}
        gone = [one for one in facts.surviving() if key_of(one) not in still]
        return asked_again(facts.state.forced_freeze_point, gone, kept)

    def _decision(self, history: History, step: int) -> Decision | None:
        """Return the decision in force at the step after `step`, in the newest lineage."""
        assert self._facts.calendar is not None
        return in_force(surviving_decisions(history.decisions, history.lineages, self._facts.calendar), step + 1)

    async def _commit(
        self, plan: Plan, history: History, ends: list[dict[str, object]], answers: dict[str, object] | None,
        wrong_bits: WrongBits | None = None,
    ) -> None:  # fmt: skip
        """Make the plan durable, with the wrong bits that it goes back from; `announce` sends it.

        ends: lines of plans.jsonl for the generations that the plan ends.
        """
        facts, store, outbox, placement = self._facts, self._store, self._outbox, plan.placement
        continued = (*facts.state.continued, *(old.generation for old in facts.live_plans))
        # A pause's drain is over where none of its members is left: workers that start anew have not been asked to stop.
        drains = facts.state.state == RunStatus.DRAINING and (plan.start == SURVIVORS or not facts.state.paused)
        await store.commit(
            forced_freeze_point=self._asked_under(history),
            current=plan, prepared=None, counter=plan.generation.counter, decisions=history.decisions, lineages=history.lineages,
            lineage=max(start.lineage for start in history.lineages),
            max_lineage=max(facts.state.max_lineage, plan.lineage),
            continued=continued[-CONTINUED_KEPT:],
            state=RunStatus.DRAINING if drains else RunStatus.RUNNING,
            message=facts.state.message if drains else "",
            paused=drains and facts.state.paused,
            start_degrees=facts.state.start_degrees or placement.degrees, pinned=facts.state.pinned_under(plan),
            wrong_bits=self._with_earlier(wrong_bits.answered_by(plan)) if wrong_bits is not None else facts.state.wrong_bits,
        )  # fmt: skip
        facts.message, facts.entered = "", {}
        line = plan_line(plan, plan.start_step + 1)
        outbox.unannounced = [*ends, {**line, "answers": answers} if answers else line]

    def _with_earlier(self, found: WrongBits) -> WrongBits:
        """Return wrong bits with those before them whose events could not be written yet: a successor writes them all."""
        newest, events = self._facts.state.wrong_bits, self._store.events
        before = (*newest.earlier, newest) if newest is not None else ()
        waiting = [one for one in before if not events.is_durable("wrong_bits", one.step, one.lineage)]
        return found.model_copy(update={"earlier": tuple(one.model_copy(update={"earlier": ()}) for one in waiting)})

    async def announce(self) -> None:
        """Announce the newest plan if it is not announced yet: raise its run epoch, write it to plans.jsonl, then send it.

        Called in each round, so an act that failed is done again. Raises OSError.
        """
        store, outbox, plan = self._store, self._outbox, self._facts.current
        if not outbox.unannounced:
            return
        assert plan is not None
        await self.finish_epoch()
        await store.plans.append(outbox.unannounced)
        await self._plug.at(ControllerPhase.PLANNED)
        outbox.streams.send_all(outbox.plan_message(plan))
        outbox.unannounced = []
        await self._plug.at(ControllerPhase.ANNOUNCED)
        log.info(
            "plan entered without a vote generation=%s start=%s step=%s lineage=%s shape=%r reason=%r",
            plan.generation, plan.start, plan.start_step, plan.lineage, in_words(plan.placement.degrees), plan.reason,
        )  # fmt: skip

    def _ends(self, failure: Failure, found: GoOn, ended_at: int) -> list[dict[str, object]]:
        """Return the lines of plans.jsonl that end n, and n + 1 where some members had switched to that."""
        base, following = failure.current, failure.prepared
        switched = _switched_at(failure, following.generation) if following is not None else None
        if following is None or switched is None:
            return [plan_end_line(base.generation, max(ended_at, found.state.step))]
        return [
            plan_end_line(base.generation, switched),
            plan_line(following, switched + 1),
            plan_end_line(following.generation, max(ended_at, found.state.step)),
        ]


def _switched_at(failure: Failure, following: GenerationId) -> int | None:
    """Return the step whose vote switched to `following`, from the reports; None where no report contains a switch."""
    known = [report for report in failure.reports.values() if report.ran == following or following in report.switched]
    base = failure.current.generation
    steps = [vote.step for report in known for vote in report.seen if vote.generation == base]
    steps += [one.state.step for report in known for one in report.held if one.state and one.state.generation == base]
    return max(steps) if steps else (failure.current.start_step if known else None)


async def announce_gone(facts: RunFacts, outbox: Outbox, gone: CheckpointsGone) -> None:
    """Report that the run's checkpoints are gone: by one event, and in the status until they are back."""
    if facts.message != str(gone):
        facts.message = str(gone)
        await outbox.event("cannot_start", str(gone))
