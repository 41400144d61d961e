"""The checkpoints to which a run may go back. Pure."""

from collections.abc import Sequence

from frostline_contract.plan import CONTINUE
from tests.chaos.timeline import Complete, Hit, Life, Timeline


def newest_checkpoints(timeline: Timeline, before: Sequence[Life], hits: list[Hit], limit: float) -> set[int]:
    """Return the steps of the checkpoints that may have been the newest when a failure was answered.

    before: the generations up to the one that failed; a checkpoint that one of their restores undid does not count.
    """
    restores = [life for life in before if life.plan.start != CONTINUE]
    own = [one for one in timeline.checkpoints if not any(_undoes(life, one) for life in restores)]
    return checkpoints_allowed(own, min((hit.time_seconds for hit in hits), default=limit), limit)


def _undoes(life: Life, one: Complete) -> bool:
    return one.lineage < life.plan.lineage and life.first_step <= one.step


def checkpoints_allowed(checkpoints: Sequence[Complete], since: float, limit: float) -> set[int]:
    """Return the steps of the newest complete checkpoint at some time between the first fault and the answer; 0: there was
    none."""
    old = [complete for complete in checkpoints if complete.published <= since]
    new = [complete for complete in checkpoints if since < complete.published <= limit]
    newest = max(((complete.lineage, complete.step) for complete in old), default=(-1, 0))
    return {newest[1], *(complete.step for complete in new if (complete.lineage, complete.step) > newest)}
