"""The controller's calls of the planner: collects its inputs from the run's facts, and drafts and stamps the plans."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from frostline_contract.mesh import Mesh, in_words
from frostline_contract.plan import Placement, Plan
from frostline_controller.members.membership import Worker
from frostline_controller.planner.adapter import Choice, Situation, choose_placement
from frostline_controller.planner.backend import choose_backend
from frostline_controller.planner.cheapest import cheapest_placement
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.run.durable import next_generation
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.pinned import PinnedShape

log = logging.getLogger(__name__)


class PlanChoice:
    """Calls the planner for the best placement of the present workers.

    Attributes:
        wanted_by_plan: with objective "cost", the number of workers of the newest choice where the run holds fewer; else 0.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self.wanted_by_plan = 0

    def wanted_workers(self) -> int:
        """Return how many workers the run waits for, spare ones not counted.

        That is its limit; with objective "cost" the number in the pods that the run holds, where that is lower.
        """
        section, replicas = self._facts.job.placement, self._facts.state.replicas
        held = max(1, replicas * section.workers_per_pod - section.spare_workers)
        return min(self._facts.limit_workers(), held) if self._for_cost and replicas > 0 else self._facts.limit_workers()

    def domains(self, workers: Iterable[str]) -> dict[str, str]:
        """Return the failure domains of the given workers that are known; empty where the job has no buddies."""
        facts = self._facts
        if not facts.job.placement.buddies:
            return {}
        found = ((worker_id, facts.members.get(worker_id)) for worker_id in workers)
        return {worker_id: worker.failure_domain for worker_id, worker in found if worker is not None}

    def draft(
        self, choice: Choice, *, lineage: int, freeze_point: int, decision_number: int, reason: str, others: Iterable[str] = ()
    ) -> PlanDraft:
        """Return the draft of a plan for a chosen placement, with a generation that was never used.

        Args:
            choice: the chosen placement.
            lineage: of the plan's first step.
            freeze_point: in force at its first step.
            decision_number: of the decision that set the freeze point.
            reason: for people.
            others: workers outside the placement that may take part as leavers.
        """
        facts, placement = self._facts, choice.placement
        first = facts.members.get(placement.workers[0])
        assert first is not None, placement.workers[0]
        return PlanDraft(
            generation=next_generation(facts.state), lineage=lineage, placement=placement, first_worker=first,
            freeze_point=freeze_point, decision_number=decision_number, reason=reason,
            domains=self.domains((*placement.workers, *others)),
            state_ranges=facts.job.training.state_ranges, state_tiles=facts.job.training.state_tiles,
            hidden_tiles=facts.job.training.tensor_tiles.hidden,
        )  # fmt: skip

    def stamped(self, plan: Plan) -> Plan:
        """Return the plan completed for writing: with the job revision of its members, the run's prefix tile and the backend."""
        facts = self._facts
        tile = facts.identity.prefix_tile if facts.identity is not None else plan.prefix_tile
        devices = [worker.device if worker is not None else None for worker in map(facts.members.get, plan.participants)]
        backend, why = choose_backend(facts.job.placement.backend, devices)
        log.info("backend generation=%s backend=%s reason=%r", plan.generation, backend, why)
        return plan.model_copy(update={"job_revision": facts.job_revision, "prefix_tile": tile, "backend": backend})

    async def choose(self, workers: list[Worker], freeze_point: int, current: Placement | None, step: int) -> Choice:
        """Return the planner's choice of a placement.

        A pinned shape is ignored where it was pinned at another freeze point, or has more places than there are workers. Where
        nothing runs (`current` is None) a pinned shape that does not fit is ignored too, since a user's command for a shape must
        not end the run.

        Args:
            workers: the workers that a plan may name.
            freeze_point: the freeze point to plan for.
            current: the placement in force; None: nothing runs.
            step: the step from which the steps left of the run are counted.

        Raises:
            ValueError: no placement fits.
        """
        pinned = self._facts.state.pinned
        if pinned is not None and (pinned.freeze_point != freeze_point or Mesh.of(pinned.degrees).size > len(workers)):
            pinned = None
        situation = self._situation(workers, freeze_point, current, pinned, step)
        try:
            return await self._ask(situation)
        except ValueError as refusal:
            if pinned is None or current is not None:
                raise
            choice = await self._ask(replace(situation, pinned=None))
            return replace(choice, reason=f"not the pinned {in_words(pinned.degrees)}: {refusal}; {choice.reason}")

    async def _ask(self, situation: Situation) -> Choice:
        if self._for_cost:
            return await asyncio.to_thread(self._cheapest, situation)
        return await asyncio.to_thread(choose_placement, self._facts.job, situation)

    def _situation(
        self, workers: list[Worker], freeze_point: int, current: Placement | None, pinned: PinnedShape | None, step: int
    ) -> Situation:
        """Return the state of the run for the planner.

        Args:
            workers, freeze_point, current, step: as in `choose`.
            pinned: the shape that a command has set; None: the planner chooses.
        """
        facts = self._facts
        assert facts.identity is not None
        return Situation(
            num_units=facts.identity.num_units,
            freeze_point=freeze_point,
            workers=self._candidates(workers, current),
            current=current,
            start=facts.state.start_degrees,
            pinned=pinned,
            steps_left=max(0, facts.total_steps - step),
            reshape_seconds=facts.reshape_seconds,
            boundary_bytes_per_sample=facts.identity.boundary_bytes_per_sample,
            uncacheable=facts.identity.uncacheable,
            prefix_cost=facts.identity.prefix_cost,
            cache_reachable=bool(facts.cache_address()) and not facts.cache_off,
            cache_shared=facts.cache_shared,
            parallel_slots=facts.parallel_slots,
            train_samples=facts.identity.train_samples,
            tied=facts.identity.tied,
            memory_limit_bytes=facts.memory_limit_bytes,
            never_learnt=facts.never_learnt(),
            cached_point=facts.freeze_point() if facts.current is not None and facts.current.placement.use_cache else 0,
        )

    @property
    def _for_cost(self) -> bool:
        return self._facts.job.placement.objective == "cost"

    def _candidates(self, workers: list[Worker], current: Placement | None) -> tuple[Worker, ...]:
        """Return the workers that a plan may name, at most the run's limit.

        Workers in pods that stay come first, and among these present members. With objective "cost" their order is kept, and
        workers in pods that go are left out unless there are no others.
        """
        held = self._facts.state.replicas
        going = {worker.worker_id for worker in workers if 0 < held <= worker.ordinal}
        if self._for_cost:
            ordered = [worker for worker in workers if worker.worker_id not in going] or workers
        else:
            members = current.global_ranks.keys() if current is not None else set()
            ordered = sorted(workers, key=lambda worker: (worker.worker_id in going, worker.worker_id not in members))
        return tuple(ordered[: self._facts.limit_workers()])

    def _cheapest(self, situation: Situation) -> Choice:
        """Return the choice for objective "cost", and set `wanted_by_plan`."""
        choice, self.wanted_by_plan = cheapest_placement(self._facts.job, situation, self._facts.limit_workers())
        return choice
