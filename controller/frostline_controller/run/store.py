"""The run's durable store: the durable state, kept in the cluster, and the logs in the run directory."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.durable_files import replace_durably
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
    """Fields of the durable state that take effect at once, and become durable with the next commit of any kind.

    It is harmless to lose one with a controller that dies before that commit: the event behind it happens again, or one more
    attempt is made. A field on which a plan depends is set before the plan's own commit.
    """

    identity: RunIdentity | None
    retries: RetryBudget
    cache_off: str
    failed_devices: tuple[FailedDevice, ...]
    memory_limit_bytes: int
    removals: dict[str, str]


class RunStore:
    """The durable state and the logs of one run.

    Only the reconciler's task calls `commit`, so no change of the durable state overwrites another. RPC handlers append to
    `records`, `statistics`, `events` and `traces` before they acknowledge a worker's message; each log orders its writers. Any
    part may set a field of `amendments`.

    Args:
        job: the run's job, for the digests of its fixed fields.
        folder: the run directory.
        durable: reads and writes the state of this controller's incarnation.
        state: the state that `durable` found when this controller took over.
        may_write: called before each write to the run's files or pods; raises where this controller no longer leads.
    """

    def __init__(
        self, job: Job, folder: Path, durable: DurableStore, state: DurableState, may_write: Callable[[], None] = lambda: None
    ) -> None:
        self._durable, self.may_write = durable, may_write
        self._removing: dict[str, str] = {}
        # The digests become durable with the next write, as amendments do.
        self.state = state.model_copy(update={"job_digests": section_digests(job)})
        self.amendments = Amendments(
            state.identity, state.retries, state.cache_off, state.failed_devices, state.memory_limit_bytes,
            state.removals,
        )  # fmt: skip
        self.places = RunDirectory(folder)
        with contextlib.ExitStack() as opened:  # closed where a later one cannot be opened: the caller tries again
            self.records = opened.enter_context(contextlib.closing(RecordLog(self.places.metrics, may_write)))
            self.statistics = opened.enter_context(contextlib.closing(StatisticsLog(self.places.statistics, may_write)))
            self.plans = opened.enter_context(contextlib.closing(PlanLog(self.places.plans, may_write)))
            self.events = opened.enter_context(contextlib.closing(EventLog(self.places.events, may_write)))
            self.traces = opened.enter_context(contextlib.closing(TraceLog(self.places.traces, may_write)))
            opened.pop_all()

    async def commit(self, **changes: Any) -> None:
        """Change the durable state. The change is written before it takes effect in this process.

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
        """Let the next commit in this context also remove an annotation: the request in it becomes durable by that commit.

        Args:
            annotation: the annotation's name.
            text: the annotation's value when it was read. An annotation with another value stays; empty: none is removed.
        """
        self._removing = {annotation: text} if text else {}
        try:
            yield
        finally:
            self._removing = {}

    async def remove_annotation(self) -> None:
        """Remove the annotation of `removing` where no commit has done so, since the request needed no change of the state."""
        if self._removing:
            await self.commit()

    async def replace(self, file: Path, text: str) -> None:
        """Replace one of the run's files durably. Raises OSError, and the error of `may_write`."""

        def write() -> None:
            self.may_write()
            replace_durably(file, text)

        await asyncio.to_thread(write)

    def close(self) -> None:
        """Close the logs."""
        for log in (self.records, self.statistics, self.plans, self.events, self.traces):
            log.close()
