"""The processes of a local run: Redis shards, and the local cluster with controller, cache server and trainer pods."""

import logging
from collections.abc import Callable
from pathlib import Path

from frostline_contract.durable_files import make_folder_durably
from frostline_contract.job import Job
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.local.cache_shards import CacheShards
from frostline_controller.cluster.local.cluster import ClusterFailure, LocalCluster
from frostline_controller.cluster.local.service_process import Service, controller_service
from frostline_controller.cluster.local.shared_cache import KILL_REDIS, breakable_by_runs, join_cache, leave_cache, uses_cache
from frostline_controller.local_run.errors import CommandError
from frostline_rpc.auth import Tokens


class LocalServices:
    """All services of a run directory on this machine. `start`, then `stop` in every case.

    Args:
        folder: the run directory.
        job: the run's job.
        replay: a run directory whose decisions are followed; None: there is none.
        resume: arguments of the controller's first start; none for a new run.
        shared_cache: folder of the cache that the run uses in place of one of its own (`shared_cache`).
    """

    def __init__(
        self, folder: Path, job: Job, replay: Path | None, resume: tuple[str, ...], shared_cache: Path | None = None
    ) -> None:
        self._folder, self._places = folder, RunDirectory(folder)
        self._job = job
        self._replay = replay
        self._resume = resume
        self._shared_cache = shared_cache
        self._shards = CacheShards(folder, job.cache)
        self._cluster: LocalCluster | None = None
        self._log_handler: logging.Handler | None = None

    def start(self) -> None:
        """Start all services; return while the processes are still starting. Raises ValueError where there is no redis-server."""
        make_folder_durably(self._places.logs)
        self._log_to(self._places.logs / "cluster.log")
        self._places.controller_address.unlink(missing_ok=True)
        if not self._places.tokens.exists():
            Tokens.create().write(self._places.tokens)
        services = [*self._start_cache(), controller_service(self._folder, self._replay, self._resume)]
        self._cluster = LocalCluster(self._folder, self._job, services, breakable=self._breakable())
        self._cluster.start()

    def stop(self, grace_seconds: float) -> None:
        """End every process; processes left after the grace period are killed."""
        try:
            if self._cluster is not None:
                self._cluster.stop(grace_seconds)
        finally:
            self._shards.stop()
            if self._log_handler is not None:
                logging.getLogger().removeHandler(self._log_handler)
                self._log_handler.close()

    def advance(self) -> None:
        """Restart dead parts of the cache. Call it often, from the thread that called `start`."""
        self._shards.advance()

    def all_left(self) -> bool:
        """Whether no trainer pod runs any more."""
        return self._cluster is None or self._cluster.pods_running() == 0

    def notes(self) -> list[str]:
        """Return the messages for the user that no earlier call has returned."""
        return self._cluster.notes() if self._cluster is not None else []

    def failure(self) -> ClusterFailure | None:
        """Return the process that does not stay up, or None. Raises CommandError where the local cluster itself has failed."""
        assert self._cluster is not None
        if self._cluster.error is not None:
            error = self._cluster.error
            raise CommandError(f"the local cluster broke: {str(error) or repr(error)}; see {self._places.logs / 'cluster.log'}")
        return self._cluster.failure

    def _start_cache(self) -> list[Service]:
        """Return the cache server to keep running, if the job uses a cache and no other process keeps a shared one for it."""
        leave_cache(self._folder)
        if not uses_cache(self._job):
            return []
        if self._shared_cache is not None:
            join_cache(self._folder, self._shared_cache)
            return []
        return [self._shards.start()]

    def _breakable(self) -> dict[str, Callable[[], None]]:
        """Return the planned faults of the run's cache: its own, or the shared one, which its own process breaks."""
        shares = self._shared_cache is not None and uses_cache(self._job)
        return breakable_by_runs(self._shared_cache) if shares else {KILL_REDIS: self._shards.kill}

    def _log_to(self, path: Path) -> None:
        """Send the local cluster's log lines to a file; the terminal is for the run's progress."""
        self._log_handler = _LogFile(path)
        self._log_handler.setFormatter(logging.Formatter("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(self._log_handler)
        root.setLevel(logging.INFO)


class _LogFile(logging.FileHandler):
    """A log file whose write errors (a full disk) do not fill the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        return
