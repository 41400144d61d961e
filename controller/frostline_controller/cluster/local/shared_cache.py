"""One cache for several runs on this machine: who keeps it, and how a run joins it.

The folder of a shared cache holds what a run directory holds of its own cache (tokens, password, secret, address, logs), so the
cache server needs to know nothing new. A run that joins gets copies of what opens the cache, and a link to the address, which a
restarted cache server writes anew. Its tokens stay its own: a worker of one run can steer no other run.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from frostline_contract.durable_files import make_folder_durably
from frostline_contract.job import Job
from frostline_contract.job.cluster import CacheSection
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cli.errors import UserMistake
from frostline_controller.cluster.local.cache_shards import CacheShards
from frostline_controller.cluster.local.child import child_environment
from frostline_controller.cluster.local.service_process import ServiceProcess
from frostline_rpc.auth import WORKER, Tokens

START_SECONDS = 15.0
"""How long the first runs wait for the cache server; after that they start, and use it once it answers."""
STOP_SECONDS = 3.0
KILL_REDIS, KILL_CACHE_SERVER = "kill_redis", "kill_cache_server"
"""Planned faults of a cache."""

log = logging.getLogger(__name__)


class SharedCache:
    """Shards and cache server that runs come to and leave. `start`, then `stop` in every case; all calls from one thread."""

    def __init__(self, folder: Path, section: CacheSection) -> None:
        self._folder, self._places = folder.resolve(), RunDirectory(folder.resolve())
        self._shards = CacheShards(self._folder, section)
        self._server: ServiceProcess | None = None

    def start(self) -> None:
        """Start all of it; returns when the cache server has said where it is. Raises RedisUnavailable, OSError."""
        make_folder_durably(self._places.logs)
        self._places.cache_address.unlink(missing_ok=True)
        Tokens.create().write(self._places.tokens)
        service = self._shards.start(shared=True)
        environment = child_environment({**os.environ, "PYTHONUNBUFFERED": "1"})
        self._server = ServiceProcess(service, environment, self._places.logs, self._folder, log.warning)
        deadline = time.monotonic() + START_SECONDS
        while not self._places.cache_address.exists() and time.monotonic() < deadline:
            self._server.advance()
            time.sleep(0.02)

    def advance(self) -> None:
        """Call it often: what a run has asked to be broken is killed, and what has died is started again."""
        self._take_breakages()
        self._shards.advance()
        if self._server is not None:
            self._server.advance()

    def _take_breakages(self) -> None:
        kills = {KILL_REDIS: self._shards.kill, KILL_CACHE_SERVER: self._server.kill if self._server is not None else None}
        for kind, kill in kills.items():
            request = self._places.breakages / kind
            if kill is not None and request.exists():
                request.unlink()  # first forgotten, then done: a fault happens once
                log.warning("breakage kind=%s", kind)
                kill()

    def stop(self) -> None:
        """End the cache server and the shards; what they held is gone."""
        try:
            if self._server is not None:
                self._server.terminate(signal.SIGTERM)
                self._server.wait(STOP_SECONDS)
        finally:
            self._shards.stop()
            self._places.cache_address.unlink(missing_ok=True)


def uses_cache(job: Job) -> bool:
    """Whether a run of this job wants a cache at all."""
    return job.elastic.cache and job.cache.use != "never"


def check_shared_cache(folder: Path) -> None:
    """Raises UserMistake where nobody keeps a cache in `folder`."""
    if not RunDirectory(folder).tokens.exists():
        raise UserMistake(f"--shared-cache {folder}: no cache is kept there for several runs; leave it out")


def join_cache(run_dir: Path, folder: Path) -> None:
    """Let the run use the cache that is kept in `folder` in place of one of its own. Raises OSError, ValueError."""
    own, shared = RunDirectory(run_dir), RunDirectory(folder.resolve())
    own.cache_address.symlink_to(os.path.relpath(shared.cache_address, own.path.resolve()))
    own.write_secret(own.cache_token, Tokens.read(shared.tokens).by_role[WORKER])
    for mine, theirs in ((own.redis_password, shared.redis_password), (own.cache_secret, shared.cache_secret)):
        if theirs.exists():  # servers that the job names have neither, unless the environment gives it
            own.write_secret(mine, theirs.read_text(encoding="utf-8"))


def breakable_by_runs(folder: Path) -> dict[str, Callable[[], None]]:
    """By kind of fault, what asks the keeper of the shared cache in `folder` to break a part of it, within a look of its own."""
    requests = RunDirectory(folder).breakages

    def asks(kind: str) -> Callable[[], None]:
        def ask() -> None:
            requests.mkdir(exist_ok=True)
            (requests / kind).touch()

        return ask

    return {kind: asks(kind) for kind in (KILL_REDIS, KILL_CACHE_SERVER)}


def leave_cache(run_dir: Path) -> None:
    """Take away what an earlier start of the run has left of a cache: an address, and the word that opened a shared one."""
    places = RunDirectory(run_dir)
    for stale in (places.cache_address, places.cache_token):
        stale.unlink(missing_ok=True)
