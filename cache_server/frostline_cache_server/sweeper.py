"""Removal of unused values: slowly, in batches, and only where they are certainly unused or memory is short."""

import asyncio
import logging
import time
from collections.abc import Callable

from frostline_cache_server.boundaries import PRESSURE_SHARE, Boundaries
from frostline_cache_server.shards import ShardMap

KEYS_PER_SECOND = 20_000.0
"""Keys that are read in a second; this takes about 4 % of a core of Redis."""

log = logging.getLogger(__name__)


class Sweeper:
    """Removes keys in passes over all keys.

    Some namespaces are unknown to this server: those from before its start, and late writes under identities that it has
    forgotten. Their users have `grace_seconds` to lease them again; after that they are removed when memory is short.
    """

    def __init__(self, shards: ShardMap, boundaries: Boundaries, grace_seconds: float) -> None:
        self._shards, self._boundaries = shards, boundaries
        self._unknown_since: dict[bytes, float] = {}
        self._grace_seconds = grace_seconds

    async def run(self, every_seconds: float, usable: Callable[[], int]) -> None:
        """Make a pass every `every_seconds`, until the caller cancels."""
        while True:
            await asyncio.sleep(every_seconds)
            await self.sweep(usable(), time.monotonic())

    async def sweep(self, usable: int, now: float) -> int:
        """Make one pass. Returns how many keys were removed."""
        used = self._shards.memory_used
        doomed = self._boundaries.sweepable(now, used, usable)
        pressed = used > PRESSURE_SHARE * usable
        seen_unknown: set[bytes] = set()
        removed: dict[bytes, int] = {}
        if not doomed and not pressed:
            self._boundaries.forget_old(now)
            return 0
        async for shard, groups in self._shards.namespaces(KEYS_PER_SECOND):
            for namespace, keys in groups.items():
                if namespace in doomed or self._stale_unknown(namespace, now, seen_unknown, pressed):
                    removed[namespace] = removed.get(namespace, 0) + await self._shards.remove(shard, keys)
        self._unknown_since = {key: since for key, since in self._unknown_since.items() if key in seen_unknown}
        for namespace, count in removed.items():
            reason = doomed.get(namespace, "unknown to this server and memory is wanted")
            log.info("swept", extra={"namespace": namespace.hex(), "values": count, "reason": reason})
        self._boundaries.forget_old(now)
        return sum(removed.values())

    def _stale_unknown(self, namespace: bytes, now: float, seen: set[bytes], pressed: bool) -> bool:
        if not pressed or namespace in self._boundaries.namespaces():
            return False
        seen.add(namespace)
        return now - self._unknown_since.setdefault(namespace, now) >= self._grace_seconds
