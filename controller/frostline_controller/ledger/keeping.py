"""The keeping of the run's books: fed by workers' reports and pods, written to ledger.json, taken over by a next controller."""

import json
import logging
import time
from statistics import median

from frostline_contract.run_directory import read_json
from frostline_contract.run_status import RunStatus
from frostline_controller.ledger import saved, steps, sums
from frostline_controller.ledger.books import Books
from frostline_controller.members.membership import GONE, Membership
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Time between two writes. A live worker reports its sums again, so nothing since the last write is lost with a controller."""
LOOK_SECONDS = 0.5
"""Time between two checks for workers that have come or gone: a thousand workers are too many to check in each round."""
LEDGER_VERSION = 1


class Bookkeeping:
    """Keeps the run's books: `advance` is called in every round, and `close` when the run ends."""

    def __init__(self, facts: RunFacts, store: RunStore) -> None:
        self._facts, self._store = facts, store
        self._written_at, self._looked_at = facts.clock(), float("-inf")
        self._changed = False
        self._take_over()

    def _take_over(self) -> None:
        """Take over the books of the controller before. An unreadable file is logged and ignored: no decision depends on it."""
        try:
            found = read_json(self._store.places.ledger)
            if found:
                self._facts.books = Books.load(found["books"], self._facts.clock())
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            log.error("ledger.json cannot be read, the ledger begins anew error=%r", error)

    async def advance(self, now: float) -> None:
        """Note workers that have come or gone, and the pods held; write regularly, and soon after a worker has left."""
        facts = self._facts
        if facts.ended or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at, facts.books.over = now, False
        self._note_workers(now)
        self._note_pods(now)
        if self._changed or now - self._written_at >= EVERY_SECONDS:
            self._changed, self._written_at = False, now
            await self.write(now)

    async def close(self, now: float) -> None:
        """Close every account, since the run has ended, and write the ledger."""
        receive(self._facts)
        self._facts.books.rest(now)
        self._facts.books.leave_all(now)
        await self.write(now)

    async def write(self, now: float) -> None:
        """Replace ledger.json; where that fails (a full disk), it is tried again later, and nothing waits for it.

        Raises the error of `may_write` where this controller no longer leads.
        """
        self._learn_times()
        values = {
            "version": LEDGER_VERSION, "saved_at": round(time.time(), 3), "ledger": ledger_of(self._facts, self._store).as_json(),
            "books": self._facts.books.dump(now),
        }  # fmt: skip
        try:
            await self._store.replace(self._store.places.ledger, json.dumps(values) + "\n")
        except OSError as error:
            log.warning("ledger.json cannot be written, trying again later error=%s", error)

    def _learn_times(self) -> None:
        """Read the units' times from profile.json, which exists once there is a first plan."""
        facts, places = self._facts, self._store.places
        if facts.books.times is not None or facts.identity is None or not places.profile.exists():
            return
        try:
            profile = MeasuredProfile.model_validate_json(places.profile.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            log.warning("profile.json cannot be read, savings are not estimated yet error=%r", error)
            return
        facts.books.times = saved.UnitTimes(
            tuple(unit.forward_seconds for unit in profile.units), tuple(unit.backward_seconds for unit in profile.units),
            profile.micro_batch_size, facts.identity.prefix_cost,
        )  # fmt: skip

    def _note_workers(self, now: float) -> None:
        facts, books = self._facts, self._facts.books
        members, settled = facts.members, now - facts.started > facts.members.dead_after_seconds
        for worker in members:
            if worker.presence != GONE:
                books.admit(worker.worker_id, worker.registered_at)
        for worker_id in books.open():
            if members.loss_of(worker_id, facts.cluster.uids, settled):
                receive_one(books, members, worker_id)
                books.leave(worker_id, now, died=not members.was_taken(worker_id, facts.cluster.uids))
                self._changed = True

    def _note_pods(self, now: float) -> None:
        facts = self._facts
        books, pods = facts.books, facts.state.replicas
        if facts.current is None or pods < 1 or facts.state.state == RunStatus.WAITING:
            books.rest(now)
            return
        books.hold(pods * facts.job.placement.workers_per_pod, now)


def receive(facts: RunFacts) -> None:
    """Take the newest report of every present worker."""
    for worker in facts.members:
        if worker.presence != GONE:
            receive_one(facts.books, facts.members, worker.worker_id)
    fetches = [one.cache.fetch_seconds_per_sample for one in facts.members if one.cache is not None]
    if any(fetches):
        facts.books.fetch_seconds = median(seconds for seconds in fetches if seconds > 0)


def receive_one(books: Books, members: Membership, worker_id: str) -> None:
    """Take a worker's newest report, if this controller has received any."""
    worker = members.get(worker_id)
    if worker is not None and worker.spending is not None:
        spent = worker.spending
        books.receive(worker_id, spent.seconds, spent.waiting_seconds, worker.phase, worker.spending_at)


def ledger_of(facts: RunFacts, store: RunStore) -> sums.Ledger:
    """Return the ledger as of now."""
    if not facts.ended:
        receive(facts)
    now, books, job, recorded = facts.clock(), facts.books, facts.job, store.records.steps
    used = sums.with_taken_back(books.used(now), recorded.taken_back)
    estimates = {"pods": books.given_back_by(now)}
    if books.times is not None:
        counted = steps.micro_batches(recorded.by_point, job.training.num_microbatches, job.training.batch == "per_replica")
        estimates["freezing"] = saved.by_freezing(counted, books.times)
        if books.fetch_seconds is not None:
            hits = {point: one.hits for point, one in recorded.by_point.items()}
            estimates["cache"] = saved.by_cache(hits, books.times, books.fetch_seconds)
    return sums.Ledger(used=used, saved=estimates, price_per_worker_hour=job.cluster.price_per_worker_hour)
