"""The start of a waiting run: as soon as all wanted workers have registered, or `min_workers` of them when the waiting time is
over."""

from frostline_controller.members.membership import Worker
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.run.facts import RunFacts


class StartWait:
    """The wait before the first plan, and before the first one after a resume or a pause."""

    def __init__(self, facts: RunFacts, choosing: PlanChoice) -> None:
        self._facts, self._choosing = facts, choosing
        self.since: float | None = None
        """When the wait for further workers began, by the run's clock; None while no worker is there."""

    @property
    def wanted(self) -> int:
        """The number of workers with which the run would start."""
        return self._choosing.wanted_workers()

    def workers(self, now: float) -> list[Worker]:
        """Return the workers to start with; empty while the run waits for more, which its message then says.

        Before a first plan or after a resume, the run waits for missing workers for `controller.start_timeout_seconds`. After a
        pause, `min_workers` are enough as soon as no worker has joined for `controller.join_settle_seconds`; later workers join
        the running generation.
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
    """Whether the worker is of the generation that has paused, or of an earlier one: its process ends, and no plan names it."""
    current = facts.current
    if current is None or not (facts.state.between and facts.state.paused):
        return False
    return worker.generation is not None or worker.worker_id in current.places
