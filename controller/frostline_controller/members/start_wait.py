"""When a run that waits for workers starts: with all that it wants, or with enough once the time for the others is over."""

from frostline_controller.members.membership import Worker
from frostline_controller.planner.choice import Choosing
from frostline_controller.run.facts import RunFacts


class StartWait:
    """The wait before the first plan, and before the first one after a resume or a pause."""

    def __init__(self, facts: RunFacts, choosing: Choosing) -> None:
        self._facts, self._choosing = facts, choosing
        self.since: float | None = None
        """Since when others are waited for, by the run's clock; None while nobody is there."""

    @property
    def wanted(self) -> int:
        """How many workers the run waits for while it may."""
        return self._choosing.wanted_workers()

    def workers(self, now: float) -> list[Worker]:
        """The workers to start with; empty while more are waited for, and then the run's message says so.

        Who is missing is waited for as long as a start may take. After a pause `min_workers` are enough once nobody else has
        joined for the settling time of joins: the others are taken in when they come.
        """
        facts, section = self._facts, self._facts.job.controller
        paused, wanted = facts.state.paused, self.wanted
        there = [worker for worker in facts.members.available() if not is_left_over(facts, worker)]
        if not there or facts.identity is None:
            self.since = None
            there = []
        elif paused:
            self.since = max(worker.registered_at for worker in there)
        elif self.since is None:
            self.since = now
        late = self.since is not None and now - self.since > (
            section.join_settle_seconds if paused else section.start_timeout_seconds
        )
        if there and (len(there) >= wanted or (late and len(there) >= facts.job.placement.min_workers)):
            return there
        why = f"{facts.state.message}; " if paused else ""
        facts.message = f"{why}waiting for workers: {len(there)} of {wanted} are there"
        return []


def is_left_over(facts: RunFacts, worker: Worker) -> bool:
    """Whether the worker is of the generation that has paused, or of one before it: its process ends, and no plan names it."""
    current = facts.current
    if current is None or not (facts.state.between and facts.state.paused):
        return False
    return worker.generation is not None or worker.worker_id in current.places
