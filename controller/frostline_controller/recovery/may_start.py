"""The check whether a plan may start: workers that may still report, and generations that may run unseen (docs/protocols.md 4.2).

A generation's votes are unanimous, so one member that has promised to stop, or has ended, stops the whole generation. Pure.
"""

from frostline_contract.plan import GenerationId, Plan
from frostline_controller.recovery.facts import Failure


def awaited(failure: Failure) -> tuple[str, ...]:
    """Return the participants of n and n + 1 to wait for: no report yet, not ended, and their deadline has not passed."""
    named = {worker for plan in _plans(failure) for worker in plan.participants}
    return tuple(sorted(worker for worker in named if not _is_settled(failure, worker)))


def unvouched(failure: Failure) -> tuple[GenerationId, ...]:
    """Return the generations that may still run: no member has promised to stop or has ended, and none is known to be over."""
    return tuple(plan.generation for plan in _plans(failure) if not (_is_over(failure, plan) or _is_stopped(failure, plan)))


def is_bounded(failure: Failure) -> bool:
    """Whether the reports bound the steps on which any generation can have voted.

    A member takes part in each vote of its generation, so one member's report covers all votes. Where all members that stopped
    have ended without a report, an unreachable member may have seen votes that no report contains.
    """

    def reported(plan: Plan) -> bool:
        named = [failure.reports.get(worker) for worker in plan.placement.workers]
        return any(report is not None and plan.generation <= report.newest_received for report in named)

    return all(reported(plan) or _is_over(failure, plan) for plan in _plans(failure))


def _plans(failure: Failure) -> list[Plan]:
    return [plan for plan in (failure.current, failure.prepared) if plan is not None]


def _is_settled(failure: Failure, worker: str) -> bool:
    if worker in failure.ended or worker in failure.silent:
        return True
    report = failure.reports.get(worker)
    if report is None:
        return False
    return all(plan.generation <= report.newest_received for plan in _plans(failure) if worker in plan.places)


def _is_stopped(failure: Failure, plan: Plan) -> bool:
    """Whether a member has promised to stop, or has ended. Leavers do not count: they never vote in this generation."""
    for worker in plan.placement.workers:
        report = failure.reports.get(worker)
        if worker in failure.ended or (report is not None and plan.generation <= report.newest_received):
            return True
    return False


def _is_over(failure: Failure, plan: Plan) -> bool:
    """Whether a plan is known to be over: for n, its switching vote was seen; for n + 1, no vote can switch to it (expired)."""
    if plan is failure.prepared:
        return not failure.votable or any(plan.generation in report.expired for report in failure.reports.values())
    following = failure.prepared
    if following is None or following.base != plan.generation:
        return False
    return any(following.generation in report.switched for report in failure.reports.values())
