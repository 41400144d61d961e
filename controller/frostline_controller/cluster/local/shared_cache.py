"""One cache for several runs on this machine: the process that keeps it, and how a run joins it.

The folder of a shared cache holds the same files of a cache as a run directory (tokens, password, secret, address, logs), so the
cache server needs no special case. A run that joins gets copies of the cache's credentials, and a link to the address, which a
restarted cache server writes anew. The run's own tokens stay its own: a worker of one run cannot control another run.
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
from frostline_controller.cluster.local.cache_shards import CacheShards
from frostline_controller.cluster.local.child import child_environment
from frostline_controller.cluster.local.redis_process import find_redis_server
from frostline_controller.cluster.local.service_process import ServiceProcess
from frostline_controller.local_run.errors import UserMistake
from frostline_rpc.auth import WORKER, Tokens

START_SECONDS = 15.0
"""The longest wait of the first runs for the cache server, in seconds; after that they start, and use the server once it answers.
"""
STOP_SECONDS = 3.0
KILL_REDIS, KILL_CACHE_SERVER = "kill_redis", "kill_cache_server"
"""Planned faults of a cache."""

log = logging.getLogger(__name__)


class SharedCache:
    """The shards and the cache server of several runs. `start`, then `stop` in every case; all calls from one thread."""

    def __init__(self, folder: Path, section: CacheSection) -> None:
        self._folder, self._places = folder.resolve(), RunDirectory(folder.resolve())
        self._shards = CacheShards(self._folder, section)
        self._server: ServiceProcess | None = None

    def start(self) -> None:
        """Start shards and cache server; return when the cache server has written its address. Raises RedisUnavailable,
        OSError."""
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
        """Carry out the planned faults that runs have requested, and restart dead processes. Call it often."""
        self._take_breakages()
        self._shards.advance()
        if self._server is not None:
            self._server.advance()

    def _take_breakages(self) -> None:
        kills = {KILL_REDIS: self._shards.kill, KILL_CACHE_SERVER: self._server.kill if self._server is not None else None}
        for kind, kill in kills.items():
            request = self._places.breakages / kind
            if kill is not None and request.exists():
                request.unlink()  # removed before it is carried out: a fault happens once
                log.warning("breakage kind=%s", kind)
                kill()

    def stop(self) -> None:
        """End the cache server and the shards; their contents are lost."""
        try:
            if self._server is not None:
                self._server.terminate(signal.SIGTERM)
                self._server.wait(STOP_SECONDS)
        finally:
            self._shards.stop()
            self._places.cache_address.unlink(missing_ok=True)


def uses_cache(job: Job) -> bool:
    """Whether a run of this job uses a cache at all."""
    return job.elastic.cache and job.cache.use != "never"


def check_redis_server(job: Job) -> None:
    """Raise RedisUnavailable where a cache of the job needs a redis-server of this machine, and there is none."""
    if uses_cache(job) and not job.cache.addresses:
        find_redis_server()


def check_shared_cache(folder: Path) -> None:
    """Raise UserMistake where no process keeps a cache in `folder`."""
    if not RunDirectory(folder).tokens.exists():
        raise UserMistake(f"--shared-cache {folder}: no cache is kept there for several runs; leave it out")


def join_cache(run_dir: Path, folder: Path) -> None:
    """Let the run use the cache in `folder` in place of a cache of its own. Raises OSError, ValueError."""
    own, shared = RunDirectory(run_dir), RunDirectory(folder.resolve())
    own.cache_address.symlink_to(os.path.relpath(shared.cache_address, own.path.resolve()))
    own.write_secret(own.cache_token, Tokens.read(shared.tokens).by_role[WORKER])
    for mine, theirs in ((own.redis_password, shared.redis_password), (own.cache_secret, shared.cache_secret)):
        if theirs.exists():  # external servers have neither, unless the environment gives it
            own.write_secret(mine, theirs.read_text(encoding="utf-8"))


def breakable_by_runs(folder: Path) -> dict[str, Callable[[], None]]:
    """Return, by kind of fault, a function that requests this fault of the process of the shared cache in `folder`.

    That process carries out a request at its next `advance`.
    """
    requests = RunDirectory(folder).breakages

    def asks(kind: str) -> Callable[[], None]:
        def ask() -> None:
            requests.mkdir(exist_ok=True)
            (requests / kind).touch()

        return ask

    return {kind: asks(kind) for kind in (KILL_REDIS, KILL_CACHE_SERVER)}


def leave_cache(run_dir: Path) -> None:
    """Remove the files of a cache that an earlier start of the run has left: an address, and the token of a shared cache."""
    places = RunDirectory(run_dir)
    for stale in (places.cache_address, places.cache_token):
        stale.unlink(missing_ok=True)
