"""Changes of the job while the run goes on (docs/protocols.md 9): live fields hold from the next generation on, changed fixed
fields are refused by name."""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from frostline_contract.job import Job
from frostline_contract.plan import GenerationId
from frostline_controller.reshape.triggers import ReshapeTriggers
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)


class Offers(Protocol):
    """A source of changed jobs. Its methods block and may raise OSError."""

    def changed(self) -> bool:
        """Whether there may be a change since the last `accept`; a cheap check."""
        ...

    def accept(self, run_dir: Path) -> tuple[Job, list[str]]:
        """Return the job to follow from now on, made durable in the run's folder, and the texts of events about it."""
        ...


class LiveFields:
    """Follows the job file while the run goes on: changed live fields are taken over, others refused by name.

    Args:
        facts, store, outbox: the run's.
        adapting: takes the request for a generation that follows a changed job.
        offers: the source of changed jobs; None where the job cannot change.
    """

    def __init__(
        self, facts: RunFacts, store: RunStore, outbox: Outbox, adapting: ReshapeTriggers, offers: Offers | None
    ) -> None:
        self._facts, self._store, self._outbox, self._adapting, self._offers = facts, store, outbox, adapting, offers
        self._asked: tuple[GenerationId, str] | None = None

    async def advance(self) -> None:
        """Take a changed job, and request a generation whose members follow it.

        A job that a predecessor took without a new generation is handled too.
        """
        facts, store, outbox = self._facts, self._store, self._outbox
        if self._offers is not None and self._offers.changed():
            store.may_write()  # `accept` writes the job file
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
