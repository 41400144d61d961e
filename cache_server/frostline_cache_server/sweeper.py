"""Removal of what nobody uses any more: slowly, in batches, and only where it is certain or the memory is wanted."""

import asyncio
import logging
import time
from collections.abc import Callable

from frostline_cache_server.boundaries import PRESSURE_SHARE, Boundaries
from frostline_cache_server.shards import ShardMap

KEYS_PER_SECOND = 20_000.0
"""Keys looked at in a second: about 4 % of one Redis core."""

log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps in passes over all keys.

    Namespaces that this server never heard of (another server's life, a late write after its identity was forgotten) are left
    alone until their users had `grace_seconds` to lease them again, and go only when memory is wanted.
    """

    def __init__(self, shards: ShardMap, boundaries: Boundaries, grace_seconds: float) -> None:
        self._shards, self._boundaries = shards, boundaries
        self._unknown_since: dict[bytes, float] = {}
        self._grace_seconds = grace_seconds

    async def run(self, every_seconds: float, usable: Callable[[], int]) -> None:
        """Passes for ever; the caller cancels."""
        while True:
            await asyncio.sleep(every_seconds)
            await self.sweep(usable(), time.monotonic())

    async def sweep(self, usable: int, now: float) -> int:
        """One pass. Returns how many keys were removed."""
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
