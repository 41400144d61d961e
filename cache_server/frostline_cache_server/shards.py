"""The only place that speaks to Redis here: which shards answer, how full they are, and removal of swept keys.

No method raises because of Redis: a shard that fails is down until it answers again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

import redis.asyncio
from redis.exceptions import RedisError

CALL_SECONDS = 1.0
SCAN_BATCH = 512
KEY_PREFIX = b"fl:"
NAMESPACE_BYTES = 16
KEY_BYTES = len(KEY_PREFIX) + NAMESPACE_BYTES + 16
log = logging.getLogger(__name__)


@dataclass
class ShardState:
    """One shard as last seen. Bytes; values counts stored keys."""

    host: str
    port: int
    client: redis.asyncio.Redis
    up: bool = False
    run_id: str = ""
    memory_used: int = 0
    memory_limit: int = 0
    values: int = 0
    reason: str = field(default="not asked yet")


class ShardMap:
    """The shards in the order that hashing uses. `version` rises with every change that a client should hear of."""

    def __init__(self, addresses: list[tuple[str, int]], password: str | None) -> None:
        self.shards = [ShardState(host, port, _client(host, port, password)) for host, port in addresses]
        self.version = 1

    async def refresh(self) -> None:
        """Ask every shard how it is; at most about CALL_SECONDS."""
        await asyncio.gather(*(self._refresh(shard) for shard in self.shards))

    async def close(self) -> None:
        for shard in self.shards:
            await shard.client.aclose()

    @property
    def memory_used(self) -> int:
        return sum(shard.memory_used for shard in self.shards if shard.up)

    @property
    def memory_limit(self) -> int:
        """Sum of the shards' maxmemory; 0 where one has none."""
        limits = [shard.memory_limit for shard in self.shards]
        return sum(limits) if all(limits) else 0

    @property
    def values(self) -> int:
        return sum(shard.values for shard in self.shards if shard.up)

    async def namespaces(self, keys_per_second: float) -> AsyncIterator[tuple[ShardState, dict[bytes, list[bytes]]]]:
        """Walk over all keys of all shards that are up, batch by batch and no faster than said, grouped by namespace."""
        for shard in self.shards:
            cursor = 0
            while shard.up:
                try:
                    cursor, keys = await shard.client.scan(cursor, match=KEY_PREFIX + b"*", count=SCAN_BATCH)
                except (RedisError, OSError, TimeoutError) as error:
                    self._note(shard, False, str(error), shard.run_id)
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
        """Unlink keys; Redis frees them in its background. Returns how many there were."""
        try:
            return int(await shard.client.unlink(*keys))
        except (RedisError, OSError, TimeoutError) as error:
            self._note(shard, False, str(error), shard.run_id)
            return 0

    async def _refresh(self, shard: ShardState) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                server = await shard.client.info("server")
                memory = await shard.client.info("memory")
                values = await shard.client.dbsize()
        except (RedisError, OSError, TimeoutError) as error:
            self._note(shard, False, str(error) or type(error).__name__, shard.run_id)
            return
        shard.memory_used, shard.memory_limit = int(memory["used_memory"]), int(memory["maxmemory"])
        shard.values = int(values)
        self._note(shard, True, "answers", str(server["run_id"]))

    def _note(self, shard: ShardState, up: bool, reason: str, run_id: str) -> None:
        """Transitions only, in the log and in the version."""
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
    """`host:port,host:port`. Raises ValueError that names the entry."""
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = entry.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"shard {entry!r} is not host:port with a port of 1 to 65535")
        addresses.append((host, int(port)))
    if not addresses:
        raise ValueError("no shards: name at least one as host:port")
    return addresses


def _client(host: str, port: int, password: str | None) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(
        host=host, port=port, password=password, socket_timeout=CALL_SECONDS, socket_connect_timeout=CALL_SECONDS
    )
