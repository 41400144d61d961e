"""Objective "cost": the shape of a run that hands workers back, chosen as if all workers that it may have were there. Pure."""

from dataclasses import replace

from frostline_contract.job import Job
from frostline_controller.members.membership import Worker
from frostline_controller.planner.adapter import Choice, Situation, choose_placement
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.planner.measurements import reference_profile
from frostline_controller.run.pinned import PinnedShape


def cheapest_placement(job: Job, situation: Situation, limit: int) -> tuple[Choice, int]:
    """Return the placement, and the number of workers of the best shape where that is more than there are (else 0).

    The shape is chosen as if all workers that the run may have (`limit`) were there, so that a run is judged alike before and
    after it hands pods back. The shape is then put on the workers with the lowest ordinals, since the highest are handed back.
    What else a command has pinned (slices, shard, tensor_rows) stays pinned. Where the shape needs more workers than there are,
    the placement is the fastest on those that are there.
    """
    there = situation.workers
    choice = choose_placement(job, replace(situation, workers=(*there, *_expected(situation, limit))))
    shape, count = choice.placement, len(choice.placement.workers)
    if count <= len(there):
        found = {"degrees": shape.degrees, "schedule": shape.schedule, "virtual_stages": shape.virtual_stages}
        pinned = (situation.pinned or PinnedShape(degrees=shape.degrees)).model_copy(update=found)
        present = frozenset(worker.worker_id for worker in there)
        placed = choose_placement(job, replace(situation, workers=there[:count], pinned=pinned, present=present))
        return Choice(placed.placement, placed.pays, choice.reason, placed.verdict), 0
    fast = job.model_copy(update={"placement": job.placement.model_copy(update={"objective": "throughput"})})
    return choose_placement(fast, situation), count if choice.pays else 0


def _expected(situation: Situation, limit: int) -> list[Worker]:
    """Return stand-ins for the workers of pods that the run may have and does not hold; each has the reference profile."""
    there = situation.workers
    profile = reference_profile(there, one_machine=situation.parallel_slots is not None)
    alike = replace(there[0], profile=KeptProfile.of(profile), link=None, cache=None)
    return [
        replace(alike, worker_id=f"expected/{number}", pod_name=f"expected-{number}", failure_domain=f"expected-{number}")
        for number in range(len(there), limit)
    ]
