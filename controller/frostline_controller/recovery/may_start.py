"""Whether a plan may start: who may still report, and which generation could still run on without anybody knowing
(docs/protocols.md 4.2).

A generation's votes are unanimous, so one member's promise, or its end, stops it. Pure.
"""

from frostline_contract.plan import GenerationId, Plan
from frostline_controller.recovery.facts import Failure


def awaited(failure: Failure) -> tuple[str, ...]:
    """Participants of n and n + 1 that have not promised yet, have not ended, and have not missed their deadline."""
    named = {worker for plan in _plans(failure) for worker in plan.participants}
    return tuple(sorted(worker for worker in named if not _is_settled(failure, worker)))


def unvouched(failure: Failure) -> tuple[GenerationId, ...]:
    """Generations that may still run: no member of theirs has promised not to, or ended, and their fate is not known."""
    return tuple(plan.generation for plan in _plans(failure) if not (_is_over(failure, plan) or _is_stopped(failure, plan)))


def is_bounded(failure: Failure) -> bool:
    """Whether reports say how far every generation can have voted: a member that has promised took part in each of its votes.

    Where members only ended, one that nobody reaches may hold votes that no reporter knows of.
    """

    def reported(plan: Plan) -> bool:
        named = [failure.reports.get(worker) for worker in plan.placement.workers]
        return any(report is not None and plan.generation <= report.heard for report in named)

    return all(reported(plan) or _is_over(failure, plan) for plan in _plans(failure))


def _plans(failure: Failure) -> list[Plan]:
    return [plan for plan in (failure.current, failure.prepared) if plan is not None]


def _is_settled(failure: Failure, worker: str) -> bool:
    if worker in failure.ended or worker in failure.silent:
        return True
    report = failure.reports.get(worker)
    if report is None:
        return False
    return all(plan.generation <= report.heard for plan in _plans(failure) if worker in plan.places)


def _is_stopped(failure: Failure, plan: Plan) -> bool:
    """A leaver votes in no step of the generation that it leaves the world for: only members stop it."""
    for worker in plan.placement.workers:
        report = failure.reports.get(worker)
        if worker in failure.ended or (report is not None and plan.generation <= report.heard):
            return True
    return False


def _is_over(failure: Failure, plan: Plan) -> bool:
    """n is over where its switching vote was seen; a prepared n + 1 is dead where it is known that no vote will switch to it."""
    if plan is failure.prepared:
        return not failure.votable or any(plan.generation in report.dead for report in failure.reports.values())
    following = failure.prepared
    if following is None or following.base != plan.generation:
        return False
    return any(following.generation in report.switched for report in failure.reports.values())
