"""Settling of the numerics that the job leaves open (`auto`): once, from a worker's measurement, and durable before it is
sent."""

import asyncio
import logging
from pathlib import Path

from frostline_contract.durable_files import replace_durably
from frostline_contract.job import Job, dump_job, section_digests
from frostline_contract.job.automatic import Settled, sizes_to_try, with_settled
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import SizeProfiles
from frostline_controller.planner.numerics import settle_measured
from frostline_controller.run.durable import DurableState
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore
from frostline_rpc.errors import InvalidRequest

log = logging.getLogger(__name__)


def take_settled(job: Job, state: DurableState, file: Path) -> Job:
    """Return the job with the numbers that a predecessor had settled, but may not have written to the job file.

    Blocking. Raises OSError.
    """
    if state.settled is None or not job.training.automatic:
        return job
    job = with_settled(job, state.settled)
    replace_durably(file, dump_job(job))
    return job


class Settling:
    """Completes the run's job before any worker can register. `frostline run` has done so already, and left the reason."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._offered: SizeProfiles | None = None

    def take(self, measured: SizeProfiles) -> None:
        """Take a worker's measurement; the first one counts. Raises InvalidRequest for one that was not measured for this job."""
        job, sizes = self._facts.job, [one.micro_batch_size for one in measured.profiles]
        if not job.training.automatic:
            return
        wanted = sizes_to_try(job.training, job.placement.workers)
        lengths = {len(one.units) for one in measured.profiles}
        if not sizes or not set(sizes) <= set(wanted) or len(lengths) != 1 or 0 in lengths:
            raise InvalidRequest(f"measured.profiles are of sizes {sizes} and {lengths} units; this job's sizes are {wanted}")
        if self._offered is None:
            self._offered = measured
            self._facts.wake.set()

    async def start(self) -> None:
        """Write an event with the reason for the numbers of a job that was settled before the start, unless it is written."""
        recorded, settled = RunDirectory(self._store.places.path).read_facts().get("settled"), self._facts.state.settled
        if isinstance(recorded, dict) and settled is None:
            await self._settle(Settled.model_validate(recorded), self._facts.job)
        elif settled is not None and not self._store.events.counts["numerics"]:
            await self._outbox.event("numerics", settled.reason)

    async def advance(self) -> None:
        """Settle the job once a worker has measured. Raises ValueError where no choice fits the memory, Conflict, OSError."""
        facts = self._facts
        if not facts.job.training.automatic:
            return
        if facts.state.settled is None:
            if self._offered is None:
                return
            settled = await asyncio.to_thread(settle_measured, facts.job, self._offered, facts.parallel_slots)
            await self._settle(settled, with_settled(facts.job, settled))
        assert facts.state.settled is not None
        job = with_settled(facts.job, facts.state.settled)
        await self._store.replace(self._store.places.job, dump_job(job))
        facts.follow(job)

    async def _settle(self, settled: Settled, job: Job) -> None:
        await self._store.commit(settled=settled, job_digests=section_digests(job))
        await self._outbox.event("numerics", settled.reason)
