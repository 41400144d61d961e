"""The job changes while the run goes on (docs/protocols.md 9): live fields are followed from the next generation on, fixed ones
refused by name."""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from frostline_contract.job import Job
from frostline_contract.plan import GenerationId
from frostline_controller.reshape.triggers import Adapting
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)


class Offers(Protocol):
    """Where a changed job may come from. Blocking; raises OSError."""

    def changed(self) -> bool:
        """Cheap: whether there may be something new since the last `accept`."""
        ...

    def accept(self, run_dir: Path) -> tuple[Job, list[str]]:
        """The job to follow from now on, durable in the run's folder, and what is to be told of it."""
        ...


class Following:
    """Follows the job file while the run goes on: live fields are taken over, others refused by name.

    offers: None where nobody can change the job.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, adapting: Adapting, offers: Offers | None) -> None:
        self._facts, self._store, self._outbox, self._adapting, self._offers = facts, store, outbox, adapting, offers
        self._asked: tuple[GenerationId, str] | None = None

    async def advance(self) -> None:
        """Take what is offered, and have a generation made whose members follow it. Also what a predecessor took and did not
        announce."""
        facts, store, outbox = self._facts, self._store, self._outbox
        if self._offers is not None and self._offers.changed():
            job, said = await asyncio.to_thread(self._offers.accept, store.places.path)
            if job != facts.job:
                facts.follow(job)
                log.info("job changed revision=%s", facts.job_revision)
            for text in said:
                await outbox.event("command", text)
        plan = facts.current
        if plan is not None and facts.behind(plan) and self._asked != (plan.generation, facts.job_revision):
            self._asked = (plan.generation, facts.job_revision)
            self._adapting.ask("the job has changed")
