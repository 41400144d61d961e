"""What is on disk of a run, and how it gets there: the durable state in the cluster, the logs in the run directory."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.job import Job, section_digests
from frostline_contract.run_directory import RunDirectory
from frostline_controller.recovery.budget import RetryBudget
from frostline_controller.run.durable import DurableState, DurableStore, FailedDevice, RunIdentity
from frostline_controller.run.events import EventLog
from frostline_controller.run.plan_log import PlanLog
from frostline_controller.run.records import RecordLog, StatisticsLog
from frostline_controller.run.trace_log import TraceLog


@dataclass
class Amendments:
    """Fields of the durable state that hold as soon as they are known, and are written with the next commit, whatever it is for.

    Losing one with a controller that dies first is harmless: what it came from happens again, or costs one try more. What a plan
    rests on is set before the plan's own commit.
    """

    identity: RunIdentity | None
    retries: RetryBudget
    cache_off: str
    failed_devices: tuple[FailedDevice, ...]
    memory_limit_bytes: int
    removals: dict[str, str]


class RunStore:
    """The durable state and the logs of one run.

    Who writes: the durable state changes by `commit`, which only the reconciler's task calls, so of two changes none is lost.
    RPC handlers append to `records`, `statistics`, `events` and `traces` before they acknowledge what a worker sent; each log
    orders its own writers. Anybody may set a field of `amendments`.

    Args:
        job: what the run was started with, for the digests of its fixed fields.
        folder: the run directory.
        durable: reads and writes the state of this controller's incarnation.
        state: what `durable` found when it took over.
        may_write: raises where this controller leads no more; called before each write to the run's files.
    """

    def __init__(
        self, job: Job, folder: Path, durable: DurableStore, state: DurableState, may_write: Callable[[], None] = lambda: None
    ) -> None:
        self._durable, self.may_write = durable, may_write
        self._removing: dict[str, str] = {}
        # The digests are durable with whatever is written next, as amendments are.
        self.state = state.model_copy(update={"job_digests": section_digests(job)})
        self.amendments = Amendments(
            state.identity, state.retries, state.cache_off, state.failed_devices, state.memory_limit_bytes,
            state.removals,
        )  # fmt: skip
        self.places = RunDirectory(folder)
        self.records = RecordLog(self.places.metrics, may_write)
        self.statistics = StatisticsLog(self.places.statistics, may_write)
        self.plans = PlanLog(self.places.plans, may_write)
        self.events = EventLog(self.places.events, may_write)
        self.traces = TraceLog(self.places.traces, may_write)

    async def commit(self, **changes: Any) -> None:
        """Change the durable state: written and tested before it is true here.

        Args:
            changes: fields of `DurableState` and their new values; amendments go with them.

        Raises:
            Conflict: another controller leads.
            OSError: the state cannot be written; nothing has changed here.
        """
        fresh = self.state.model_copy(update={**vars(self.amendments), **changes})
        await asyncio.to_thread(self._durable.write, self.state, fresh, self._removing)
        self.state, self._removing = fresh, {}

    @contextlib.contextmanager
    def removing(self, annotation: str, text: str) -> Iterator[None]:
        """The next commit in this context removes an annotation where it still says `text`: what it asked for is durable then.

        Args:
            annotation: its name.
            text: what it said when it was read; empty: nothing is removed.
        """
        self._removing = {annotation: text} if text else {}
        try:
            yield
        finally:
            self._removing = {}

    async def remove_annotation(self) -> None:
        """Remove the annotation where no commit has done it: what was asked for needs no state."""
        if self._removing:
            await self.commit()

    def close(self) -> None:
        """Close the logs."""
        for log in (self.records, self.statistics, self.plans, self.events, self.traces):
            log.close()
