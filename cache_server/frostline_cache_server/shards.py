"""The cache server's only connection to Redis: which shards answer, how full they are, and removal of keys.

No method raises because of Redis: a shard whose call fails is down until it answers again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from frostline_contract.shard_address import parse_shard_address

CALL_SECONDS = 1.0
SCAN_BATCH = 512
KEY_PREFIX = b"fl:"
NAMESPACE_BYTES = 16
KEY_BYTES = len(KEY_PREFIX) + NAMESPACE_BYTES + 16
log = logging.getLogger(__name__)


@dataclass
class ShardState:
    """One shard, as of its last answer. Memory is in bytes; `values` counts keys."""

    host: str
    port: int
    client: redis.asyncio.Redis
    up: bool = False
    run_id: str = ""
    memory_used: int = 0
    memory_limit: int | None = None
    values: int = 0
    reason: str = field(default="not asked yet")


class ShardMap:
    """The shards in the order that hashing uses. `version` rises with every change that clients have to know."""

    def __init__(self, addresses: list[tuple[str, int]], password: str | None) -> None:
        self.shards = [ShardState(host, port, _client(host, port, password)) for host, port in addresses]
        self.version = 1

    async def refresh(self) -> None:
        """Ask every shard for its state, in about CALL_SECONDS at most."""
        await asyncio.gather(*(self._refresh(shard) for shard in self.shards))

    async def close(self) -> None:
        """Close the connections to all shards."""
        for shard in self.shards:
            await shard.client.aclose()

    @property
    def memory_used(self) -> int:
        """Bytes that Redis uses in all shards that answer."""
        return sum(shard.memory_used for shard in self.shards if shard.up)

    @property
    def memory_limit(self) -> int:
        """Sum of maxmemory over all shards that have ever answered; 0 where one of them has no limit."""
        limits = [shard.memory_limit for shard in self.shards if shard.memory_limit is not None]
        return sum(limits) if all(limits) else 0

    @property
    def values(self) -> int:
        """Keys stored in all shards that answer."""
        return sum(shard.values for shard in self.shards if shard.up)

    async def namespaces(self, keys_per_second: float) -> AsyncIterator[tuple[ShardState, dict[bytes, list[bytes]]]]:
        """Walk over all keys of all shards that are up, in batches grouped by namespace, at most `keys_per_second`."""
        for shard in self.shards:
            cursor = 0
            while shard.up:
                try:
                    cursor, keys = await shard.client.scan(cursor, match=KEY_PREFIX + b"*", count=SCAN_BATCH)
                except Exception as error:
                    self._failed(shard, error)
                    break
                groups: dict[bytes, list[bytes]] = {}
                for key in keys:
                    if len(key) == KEY_BYTES:
                        groups.setdefault(key[len(KEY_PREFIX) : len(KEY_PREFIX) + NAMESPACE_BYTES], []).append(key)
                yield shard, groups
                if cursor == 0:
                    break
                await asyncio.sleep(SCAN_BATCH / keys_per_second)

    async def remove(self, shard: ShardState, keys: Collection[bytes]) -> int:
        """Unlink keys, whose memory Redis frees in the background. Returns how many existed."""
        try:
            return int(await shard.client.unlink(*keys))
        except Exception as error:
            self._failed(shard, error)
            return 0

    async def _refresh(self, shard: ShardState) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                server = await shard.client.info("server")
                shard.values = int(await shard.client.dbsize())
                memory = await shard.client.info("memory")  # after the values, so that it is with all of them
            shard.memory_used, shard.memory_limit = int(memory["used_memory"]), int(memory["maxmemory"])
            run_id = str(server["run_id"])
        except Exception as error:
            self._failed(shard, error)
            return
        self._note(shard, True, "answers", run_id)

    def _failed(self, shard: ShardState, error: Exception) -> None:
        """Mark a shard as down. Any exception counts: where the peer is no Redis, redis-py's parser may raise any."""
        self._note(shard, False, f"{type(error).__name__}: {error}", shard.run_id)

    def _note(self, shard: ShardState, up: bool, reason: str, run_id: str) -> None:
        """Set a shard's state. Only changes are logged, and only changes raise the version."""
        if (shard.up, shard.run_id) == (up, run_id) and shard.reason != "not asked yet":
            return
        restarted = bool(shard.run_id) and shard.run_id != run_id
        shard.up, shard.run_id, shard.reason = up, run_id, reason
        self.version += 1
        log.log(
            logging.INFO if up else logging.WARNING,
            "shard %s",
            "restarted" if restarted else "up" if up else "down",
            extra={"shard": f"{shard.host}:{shard.port}", "reason": reason, "run_id": run_id, "map_version": self.version},
        )


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Addresses from `host:port,host:port`. Raises ValueError that names a wrong entry."""
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        addresses.append(parse_shard_address(entry))
    if not addresses:
        raise ValueError("no shards: name at least one as host:port")
    return addresses


def _client(host: str, port: int, password: str | None) -> redis.asyncio.Redis:
    """A client without retries: the next refresh is the retry."""
    return redis.asyncio.Redis(
        host=host,
        port=port,
        password=password,
        protocol=2,
        socket_timeout=CALL_SECONDS,
        socket_connect_timeout=CALL_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
