"""Events about changes of the cache's use: first used, refused, off again. Both the plans and the events are durable."""

from frostline_contract.plan import GenerationId
from frostline_controller.planner.caching import verdict_in
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore


class CacheNews:
    """Writes the events of kind `cache`: one where units are frozen for the first time, and one for each change since.

    A job without a cache (`elastic.cache` off, `cache.use: never`) has no such event, since its user knows.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._seen: GenerationId | None = None

    async def advance(self) -> None:
        """Compare the current plan with the last event, also with one of an earlier controller."""
        facts, store, outbox = self._facts, self._store, self._outbox
        plan = facts.current
        if plan is None or plan.generation == self._seen:
            return
        self._seen = plan.generation
        wanted = facts.job.elastic.cache and facts.job.cache.use != "never"
        announced = store.events.newest.get("cache")
        if not wanted or (plan.freeze_point == 0 and announced is None):
            return
        used = plan.placement.use_cache
        if announced is not None and announced.get("use_cache") == used:
            return
        if announced is None or used or plan.freeze_point > 0:
            why = facts.cache_off if facts.cache_off and not used else verdict_in(plan.reason)
            step = max(plan.start_step, 0)
            await outbox.event("cache", f"{'on' if used else 'off'}: {why}", step=step, use_cache=used)
