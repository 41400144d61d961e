"""The Redis shards of one cache on this machine, and the service description of its cache server."""

import logging
import secrets
from pathlib import Path

from frostline_contract.cache_tag import read_secret
from frostline_contract.job.cluster import CacheSection
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.local.redis_process import RedisProcess, RedisUnavailable, start_redis
from frostline_controller.cluster.local.service_process import Service, cache_service

log = logging.getLogger(__name__)


class CacheShards:
    """The shards of a cache: own Redis servers, or the servers that the job names.

    Call `start`, then `stop` in every case; all calls come from one thread.

    Args:
        folder: a run directory, or the folder of a cache that several runs share; it holds password, secret and logs.
        section: the job's `cache`.
    """

    def __init__(self, folder: Path, section: CacheSection) -> None:
        self._folder, self._places, self._section = folder, RunDirectory(folder), section
        self._shards: list[RedisProcess] = []

    def start(self, shared: bool = False) -> Service:
        """Start the shards; return the cache server that has to be kept running over them.

        Args:
            shared: several runs use the cache, at the same time or one after the other.

        Raises:
            RedisUnavailable: there is no redis-server, or it does not start.
        """
        self._keep_secret()
        memory = self._section.memory_bytes
        if self._section.addresses:
            return cache_service(self._folder, list(self._section.addresses), memory, shared=shared)
        password: str | None = None
        for number in range(self._section.shards):
            # Appended one by one, so that the first shards are stopped where a later one does not start.
            self._shards.append(self._start_shard(number, 0, password))
            password = self._shards[-1].password
        self._places.write_secret(self._places.redis_password, password or "")
        return cache_service(self._folder, [shard.address for shard in self._shards], memory, password or "", shared)

    def advance(self) -> None:
        """Restart each shard that has died, empty and at its old address. Call it often: what fails is tried again."""
        for number, shard in enumerate(self._shards):
            if not shard.is_alive():
                try:
                    shard.stop()
                    self._shards[number] = self._start_shard(number, shard.port, shard.password)
                except (RedisUnavailable, OSError) as error:
                    log.warning("shard %d does not start again, trying again: %s", number, error)

    def kill(self) -> None:
        """Send SIGKILL to every shard, as a planned fault; `advance` restarts them."""
        for shard in self._shards:
            shard.process.kill()

    def stop(self) -> None:
        """End the servers that `start` has started, also where the disk refuses to remove their files; external servers are left
        alone."""
        for number, shard in enumerate(self._shards):
            try:
                shard.stop()
            except OSError as error:
                log.warning("files of shard %d are not removed: %s", number, error)

    def _keep_secret(self) -> None:
        """Write the secret that signs cached values into the folder, where workers find it.

        For external servers only a given secret is written; none is made.
        """
        own = secrets.token_urlsafe(32) if not self._section.addresses else ""
        if secret := read_secret(self._folder) or own:
            self._places.write_secret(self._places.cache_secret, secret)

    def _start_shard(self, number: int, port: int, password: str | None) -> RedisProcess:
        folder = self._places.redis / f"shard-{number}"
        return start_redis(folder, self._section.memory_bytes // self._section.shards, port, password)
