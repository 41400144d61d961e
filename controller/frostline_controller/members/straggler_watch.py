"""Watches the members of the running generation for stragglers: writes an event for each, and asks the planner again."""

from frostline_contract.plan import Plan
from frostline_controller.members.membership import Worker
from frostline_controller.members.stragglers import Belief, follow, slowness, work_of
from frostline_controller.planner.measurements import reference_profile
from frostline_controller.reshape.triggers import ReshapeTriggers
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox

SLOWNESS_SECONDS = 1.0
"""Time between two measurements."""


class StragglerWatch:
    """Measures once a second how fast each member computes, and acts where a slowness lasts."""

    def __init__(self, facts: RunFacts, outbox: Outbox, adapting: ReshapeTriggers) -> None:
        self._facts, self._outbox, self._adapting = facts, outbox, adapting
        self._beliefs: dict[str, Belief] = {}
        self._measured_at = -SLOWNESS_SECONDS

    async def advance(self, now: float) -> None:
        """Measure, at most once a second, while a generation runs."""
        facts = self._facts
        if facts.current is None or facts.ended or now - self._measured_at < SLOWNESS_SECONDS:
            return
        self._measured_at = now
        readings = self._readings(facts.current)
        everybody = list(facts.members)  # a worker may register while an event is written
        for worker in everybody:
            worker.slowness = readings.get(worker.worker_id, 0.0)
            was = self._beliefs.get(worker.worker_id, Belief())
            belief = self._beliefs[worker.worker_id] = follow(was, worker.slowness, now)
            worker.lasting_slowness = belief.level
            if belief.level != was.level:
                await self._announce(worker, belief.level)
        self._beliefs = {worker.worker_id: self._beliefs[worker.worker_id] for worker in everybody}

    def _readings(self, plan: Plan) -> dict[str, float]:
        """Each member's slowness by id; empty until all members of the plan are inside."""
        facts = self._facts
        members = [facts.members.get(worker_id) for worker_id in plan.placement.workers]
        inside = [worker for worker in members if worker is not None and worker.generation == plan.generation]
        if not inside or len(inside) != len(members):
            return {}
        units = reference_profile(tuple(inside), one_machine=facts.parallel_slots is not None).units
        work = work_of(plan.placement, facts.freeze_point(), units, facts.job.training.num_microbatches)
        return slowness({worker.worker_id: worker.busy_seconds for worker in inside}, work)

    async def _announce(self, worker: Worker, level: float) -> None:
        """Write the event that a worker's believed slowness has changed, and ask the planner again."""
        facts, outbox = self._facts, self._outbox
        parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in sorted(worker.step_parts.items()))
        if level > 1:
            reason = (
                f"{worker.pod_name} computes {level:.1f} times as long as its peers would: {worker.busy_seconds:.3g} s a step"
            )
        else:
            reason = f"{worker.pod_name} is as fast as its peers"
        if facts.parallel_slots is not None:
            reason += "; all workers share one machine, so the plan does not follow"
        else:
            self._adapting.ask(reason)
        await outbox.event("straggler", f"{reason} ({parts})", detail={"worker": worker.worker_id})
