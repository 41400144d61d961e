"""The processes of a local run: Redis shards, and the local cluster with controller, cache server and trainer pods."""

import logging
import secrets
from pathlib import Path

from frostline_contract.cache_tag import read_secret
from frostline_contract.durable_files import make_folder_durably
from frostline_contract.job import Job
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cli.errors import CommandError
from frostline_controller.cluster.local.cluster import ClusterFailure, LocalCluster
from frostline_controller.cluster.local.redis_process import RedisProcess, RedisUnavailable, start_redis
from frostline_controller.cluster.local.service_process import Service, cache_service, controller_service
from frostline_rpc.auth import Tokens

log = logging.getLogger(__name__)


class LocalServices:
    """Everything that a run directory needs on this machine. `start`, then `stop` in every case."""

    def __init__(self, folder: Path, job: Job, replay: Path | None, resume: tuple[str, ...]) -> None:
        self._folder, self._places = folder, RunDirectory(folder)
        self._job = job
        self._replay = replay
        self._resume = resume
        self._shards: list[RedisProcess] = []
        self._cluster: LocalCluster | None = None
        self._log_handler: logging.Handler | None = None

    def start(self) -> None:
        """Start it all; returns while the processes are still starting. Raises ValueError where there is no redis-server."""
        make_folder_durably(self._places.logs)
        self._log_to(self._places.logs / "cluster.log")
        for stale in (self._places.controller_address, self._places.cache_address):
            stale.unlink(missing_ok=True)
        if not self._places.tokens.exists():
            Tokens.create().write(self._places.tokens)
        services = [*self._start_cache(), controller_service(self._folder, self._replay, self._resume)]
        self._cluster = LocalCluster(self._folder, self._job, services, breakable={"kill_redis": self._kill_shards})
        self._cluster.start()

    def stop(self, grace_seconds: float) -> None:
        """End every process; what has not ended after the grace is killed."""
        try:
            if self._cluster is not None:
                self._cluster.stop(grace_seconds)
        finally:
            for shard in self._shards:
                shard.stop()
            if self._log_handler is not None:
                logging.getLogger().removeHandler(self._log_handler)
                self._log_handler.close()

    def advance(self) -> None:
        """Call it often, from the thread that called `start`: a shard that has died is started again, empty, at its address."""
        for number, shard in enumerate(self._shards):
            if not shard.is_alive():
                shard.stop()
                try:
                    self._shards[number] = self._start_shard(number, shard.port, shard.password)
                except (RedisUnavailable, OSError) as error:
                    log.warning("shard %d does not start again, trying again: %s", number, error)

    def all_left(self) -> bool:
        """True where no trainer pod runs."""
        return self._cluster is None or self._cluster.pods_running() == 0

    def notes(self) -> list[str]:
        """What a user should know and has not been told yet."""
        return self._cluster.notes() if self._cluster is not None else []

    def failure(self) -> ClusterFailure | None:
        """What does not stay up, or None. Raises CommandError where the local cluster itself has broken."""
        assert self._cluster is not None
        if self._cluster.error is not None:
            error = self._cluster.error
            raise CommandError(f"the local cluster broke: {str(error) or repr(error)}; see {self._places.logs / 'cluster.log'}")
        return self._cluster.failure

    def _start_cache(self) -> list[Service]:
        """Redis shards and the cache server, where the job wants a cache: its own Redis, or the servers that it names."""
        if not self._job.elastic.cache or self._job.cache.use == "never":
            return []
        self._keep_secret()
        memory = self._job.cache.memory_bytes
        if self._job.cache.addresses:
            return [cache_service(self._folder, list(self._job.cache.addresses), memory)]
        password: str | None = None
        for number in range(self._job.cache.shards):
            # Listed one by one, so that the first ones are stopped where a later one does not start.
            self._shards.append(self._start_shard(number, 0, password))
            password = self._shards[-1].password
        self._places.write_secret(self._places.redis_password, password or "")
        return [cache_service(self._folder, [shard.address for shard in self._shards], memory, password or "")]

    def _keep_secret(self) -> None:
        """Workers find the secret that signs cached values in the run's folder. Servers of others: only one that was given."""
        own = secrets.token_urlsafe(32) if not self._job.cache.addresses else ""
        if secret := read_secret(self._folder) or own:
            self._places.write_secret(self._places.cache_secret, secret)

    def _start_shard(self, number: int, port: int, password: str | None) -> RedisProcess:
        folder = self._places.redis / f"shard-{number}"
        return start_redis(folder, self._job.cache.memory_bytes // self._job.cache.shards, port, password)

    def _kill_shards(self) -> None:
        for shard in self._shards:
            shard.process.kill()

    def _log_to(self, path: Path) -> None:
        """The local cluster's log lines go to a file; the terminal is for the run's progress."""
        self._log_handler = _LogFile(path)
        self._log_handler.setFormatter(logging.Formatter("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(self._log_handler)
        root.setLevel(logging.INFO)


class _LogFile(logging.FileHandler):
    """A log that cannot be written (a full disk) is no reason to fill the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        return
