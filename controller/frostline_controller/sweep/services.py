"""The services that the runs of a sweep share: the cache, and a warm process that forks their workers."""

import logging
import os
import signal
from pathlib import Path

from frostline_contract.durable_files import make_folder_durably
from frostline_contract.job import load_job
from frostline_contract.run_directory import RunDirectory
from frostline_contract.scratch_folder import ScratchFolder
from frostline_controller.cluster.local.child import child_environment
from frostline_controller.cluster.local.service_process import ServiceProcess, preload_service
from frostline_controller.cluster.local.shared_cache import SharedCache, uses_cache
from frostline_controller.sweep.directory import SweepDirectory, SweepState

PRELOAD_VARIABLE = "FROSTLINE_PRELOAD"
STOP_SECONDS = 3.0

log = logging.getLogger(__name__)


class SweepServices:
    """The shared services: `start`, `advance` often, then `stop` in every case; all calls from one thread.

    Attributes:
        shared_cache: folder of the cache; None where no remaining run uses one.
        environment: of the runs' processes.
    """

    def __init__(self, places: SweepDirectory, state: SweepState) -> None:
        jobs = [load_job(places.job_of(run)) for run in state.runs if not run.over]
        sections = [job.cache for job in jobs if uses_cache(job)]
        self._logs = RunDirectory(places.cache).logs
        self.shared_cache: Path | None = places.cache if sections else None
        self._cache = SharedCache(places.cache, max(sections, key=lambda one: one.memory_bytes)) if sections else None
        self.environment = dict(os.environ)
        self._sockets: ScratchFolder | None = None
        self._preload: ServiceProcess | None = None
        threads = {job.training.threads for job in jobs}
        if len(threads) == 1 and not self.environment.get(PRELOAD_VARIABLE):  # otherwise each run has its own, or the user's
            self._preload = self._shared_preload(str(threads.pop()))

    def start(self) -> None:
        """Start the shared services. Raises RedisUnavailable, OSError."""
        make_folder_durably(self._logs)
        self.advance()
        if self._cache is not None:
            self._cache.start()

    def advance(self) -> None:
        """Restart the services that have died."""
        if self._preload is not None:
            self._preload.advance()
        if self._cache is not None:
            self._cache.advance()

    def stop(self) -> None:
        """End all services."""
        try:
            if self._preload is not None:
                self._preload.terminate(signal.SIGTERM)
                self._preload.wait(STOP_SECONDS)
            if self._sockets is not None:
                self._sockets.close()
        finally:
            if self._cache is not None:
                self._cache.stop()

    def _shared_preload(self, threads: str) -> ServiceProcess:
        self._sockets = ScratchFolder()
        socket = str(self._sockets.path / "preload.sock")
        self.environment[PRELOAD_VARIABLE] = socket
        counts = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment = child_environment({**os.environ, **counts, "PYTHONUNBUFFERED": "1"})
        return ServiceProcess(preload_service(socket), environment, self._logs, self._logs.parent, log.warning)
