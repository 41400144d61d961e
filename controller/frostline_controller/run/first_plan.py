"""The first plan of a run, and the first one after a resume or a pause. It is made when its workers are there."""

from frostline_controller.members.entry import Entry, EntryWatch
from frostline_controller.members.start_wait import StartWait
from frostline_controller.planner.inputs import NothingFits
from frostline_controller.recovery.plans import StartingPlans
from frostline_controller.run.facts import RunFacts


class FirstPlan:
    """Waits for workers, and starts a generation from the newest checkpoint or from the initial weights."""

    def __init__(self, facts: RunFacts, *, wait: StartWait, starting: StartingPlans, entry: EntryWatch) -> None:
        self._facts, self._wait, self._starting, self._entry = facts, wait, starting, entry

    async def advance(self, now: float) -> None:
        """Make the plan if its workers are there; otherwise the run's message says for how many it waits.

        Raises:
            CheckpointsGone: the run's checkpoints are gone.
            NothingFits: even all workers that the run wants have too little memory.
        """
        facts, paused = self._facts, self._facts.state.paused
        self._entry.expect(None)  # that of the previous generation
        if not (workers := self._wait.workers(now)):
            return
        reason = "enough workers are there again" if paused else "resume" if facts.state.between else "first plan"
        try:
            plan = await self._starting.from_checkpoint(workers, reason)
        except NothingFits as refusal:
            if len(workers) >= self._wait.wanted:
                raise
            facts.message = f"waiting for workers: {len(workers)} of {self._wait.wanted} are there, and {refusal}"
            return
        since = self._wait.since if paused else None
        self._entry.expect(Entry(plan, since if since is not None else facts.started, now, plan.reason, failed=False))
        self._wait.since = None
        await self._starting.announce()
        facts.wake.set()  # the next round plans for changes since then
