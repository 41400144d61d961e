"""The profiles of the run's workers: handed to later joiners, and kept in profile.json for `frostline plan --profile`."""

from frostline_contract.statistics import CacheProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.measurements import measured_cache, measured_link, reference_profile
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore


class HandedOut:
    """The run's profile of each kind of device, fixed at the first request after the first plan.

    A worker that joins later registers with this profile and measures nothing. The planner uses one profile for all like workers,
    and a joiner's measurements would be disturbed by members that train on the same machine.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self._known: dict[str, WorkerProfile] = {}

    def profiles(self) -> list[WorkerProfile]:
        """Return the profiles; an empty list before the first plan, since each worker of the first plan measures for itself."""
        facts = self._facts
        if facts.current is None:
            return []
        measured: dict[str, list[Worker]] = {}
        for worker in facts.members.available():
            if worker.profile.seconds.size and worker.profile.device not in self._known:
                measured.setdefault(worker.profile.device, []).append(worker)
        for device, workers in measured.items():
            self._known[device] = reference_profile(tuple(workers), facts.parallel_slots is not None)
        return list(self._known.values())


class ProfileFile:
    """The writer of profile.json, which is written after the first plan and after each later measurement of links or cache."""

    def __init__(self, facts: RunFacts, store: RunStore) -> None:
        self._facts, self._store = facts, store
        self._written: MeasuredProfile | None = None
        self._cache: tuple[str, CacheProfile] | None = None

    async def advance(self) -> None:
        """Write the profile if it has changed; the file is complete at any moment."""
        facts, store = self._facts, self._store
        workers = tuple(facts.members.available())
        if facts.current is None or not workers:
            return
        known = self._written
        if known is None:
            own = reference_profile(workers, facts.parallel_slots is not None).model_dump()
        else:
            own = known.model_dump(include=set(WorkerProfile.model_fields))
        profile = MeasuredProfile(
            **own,
            link=measured_link(workers) or (known.link if known is not None else None),
            cache=self._cache_of(workers, str(facts.current.generation)),
            prefix_cost=facts.identity.prefix_cost if facts.identity is not None else 1.0,
        )
        if profile == known:
            return
        await store.replace(store.places.profile, profile.model_dump_json(indent=2) + "\n")
        self._written = profile

    def _cache_of(self, workers: tuple[Worker, ...], generation: str) -> CacheProfile | None:
        """Return the cache's measurements, taken once a generation, so that constant measuring does not rewrite the file."""
        if self._cache is None or self._cache[0] != generation:
            found = measured_cache(workers)
            if found is not None:
                self._cache = generation, found
        return self._cache[1] if self._cache is not None else None
