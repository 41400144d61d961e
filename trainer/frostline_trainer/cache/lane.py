"""Lanes, which distribute requests over the shards, with a thread for each shard; and the health of each shard.

A lane belongs to one thread at a time and has its own connections. All lanes share the shards' health: a dead shard costs one
short timeout, and then its keys miss at once, until it answers a background probe.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from frostline_contract.backoff import Backoff
from frostline_contract.cache_identity import shard_of
from frostline_trainer.cache.outcomes import ConnectionFault, Outcome
from frostline_trainer.cache.resp import Buffer, Connection

SILENCE_SECONDS = 0.5
"""Longest wait for the next bytes of a shard."""

BACK_OFF_SECONDS_MIN = 0.5
BACK_OFF_SECONDS_MAX = 8.0
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Shard:
    """One Redis server, and whether it is up. Any thread may call any method.

    Args:
        host, port, database, password: of the server; None: it needs no password.
        on_down: called when the server is marked as down.
    """

    def __init__(self, host: str, port: int, database: int, password: str | None, on_down: Callable[[], None]) -> None:
        self.host, self.port, self.database = host, port, database
        self._password = password
        self._on_down = on_down
        self._lock = threading.Lock()
        self._backoff = Backoff(BACK_OFF_SECONDS_MIN, BACK_OFF_SECONDS_MAX)
        self.up = True
        self.life = 0
        self.retry_at = 0.0
        self.run_id = ""

    def describes(self, host: str, port: int, database: int, password: str | None) -> bool:
        """Whether a shard map's entry names this server, so that its health is kept when a new map arrives."""
        return (self.host, self.port, self.database, self._password) == (host, port, database, password)

    def open(self) -> Connection:
        """A new authenticated connection. Raises ConnectionFault, after SILENCE_SECONDS at most."""
        return Connection(self.host, self.port, self._password, self.database, SILENCE_SECONDS)

    def mark_down(self, life: int, reason: str) -> None:
        """Mark the shard as down after a failure of a connection from its life `life`, until it answers a probe."""
        with self._lock:
            if life != self.life:
                return
            self.life += 1
            back_off = self._backoff.failed()
            self.up, self.retry_at = False, time.monotonic() + back_off
        log.warning("cache shard %s:%d is down for %.1f s: %s", self.host, self.port, back_off, reason)
        self._on_down()

    def mark_useful(self) -> None:
        """Reset the back-off after a successful transfer of values."""
        self._backoff.reset()

    def probe(self) -> None:
        """Ping a shard that is down, if its back-off is over. For a background thread."""
        if self.up or time.monotonic() < self.retry_at:
            return
        try:
            connection = self.open()
            try:
                connection.ping(time.monotonic() + SILENCE_SECONDS)
                run_id = connection.run_id(time.monotonic() + SILENCE_SECONDS)
            finally:
                connection.close()
        except ConnectionFault as error:
            self.mark_down(self.life, str(error))
            return
        restarted = bool(self.run_id) and run_id != self.run_id
        self.run_id, self.up = run_id, True
        log.info("cache shard %s:%d answers again%s", self.host, self.port, ", restarted and empty" if restarted else "")


class Lane:
    """One thread's connections to all shards. Not thread-safe: a lane has one user at a time.

    others_seconds: processor seconds that the shards' threads have used, beside those of the lane's user.
    """

    def __init__(self, shards: Callable[[], Sequence[Shard]]) -> None:
        self._shards = shards
        self._connections: dict[Shard, tuple[int, Connection]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.others_seconds = 0.0

    def fetch(
        self,
        keys: Sequence[bytes],
        targets: Sequence[Sequence[memoryview]],
        deadline: float,
        check: Callable[[int], None],
    ) -> list[Outcome | None]:
        """Fetch keys[i] into targets[i].

        Args:
            keys: keys of chunks.
            targets: buffers of each chunk, which together have its exact length.
            deadline: by time.monotonic(). The call ends one SILENCE_SECONDS later at the latest, plus the checks.
            check: called with i for each chunk that came, in the shard's thread.

        Returns:
            The outcome of each key; None: its shard is down.
        """

        def work(connection: Connection, indices: list[int]) -> list[Outcome]:
            outcomes = connection.get_many([keys[i] for i in indices], [targets[i] for i in indices], deadline)
            for index, outcome in zip(indices, outcomes, strict=True):
                if outcome is Outcome.DONE:
                    check(index)
            return outcomes

        return self._on_shards(keys, work)

    def store(self, items: Sequence[tuple[bytes, Sequence[Buffer]]], deadline: float) -> list[Outcome | None]:
        """Store (key, value parts). None: shard down."""

        def work(connection: Connection, indices: list[int]) -> list[Outcome]:
            return connection.set_many([items[i] for i in indices], deadline)

        return self._on_shards([key for key, _ in items], work)

    def unlink(self, keys: Sequence[bytes], deadline: float) -> None:
        """Remove values, each from its shard, by `deadline` (time.monotonic()); values of a shard that is down stay."""

        def work(connection: Connection, indices: list[int]) -> list[Outcome]:
            connection.unlink([keys[i] for i in indices], deadline)
            return [Outcome.DONE] * len(indices)

        self._on_shards(keys, work)

    def close(self) -> None:
        """Close the connections and end the threads; the shards' health, which other lanes share, is kept."""
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    def _on_shards(self, keys: Sequence[bytes], work: Callable[[Connection, list[int]], list[Outcome]]) -> list[Outcome | None]:
        """Run `work` on each shard's part of the keys, in parallel; results in the keys' order."""
        shards = tuple(self._shards())
        results: list[Outcome | None] = [None] * len(keys)
        parts: dict[Shard, list[int]] = {}
        for index, key in enumerate(keys):
            if shards and (shard := shards[shard_of(key, len(shards))]).up:
                parts.setdefault(shard, []).append(index)
        self._forget_all_but(shards)

        def run(shard: Shard) -> float:
            started = time.thread_time()
            for index, outcome in zip(parts[shard], self._on_shard(shard, parts[shard], work), strict=True):
                results[index] = outcome
            return time.thread_time() - started

        busy = list(parts)
        if len(busy) > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(len(shards), thread_name_prefix="cache-shard")
        others = [self._threads.submit(run, shard) for shard in busy[1:]] if self._threads is not None else []
        for shard in busy[:1]:
            run(shard)
        self.others_seconds += sum(other.result() for other in others)
        return results

    def _on_shard(
        self, shard: Shard, indices: list[int], work: Callable[[Connection, list[int]], list[Outcome]]
    ) -> list[Outcome] | list[None]:
        life = shard.life
        try:
            connection = self._connection(shard, life)
            outcomes = work(connection, indices)
        except ConnectionFault as error:
            # Requests under way on this connection have unknown results: none counts, and the connection is dropped.
            _, broken = self._connections.pop(shard, (0, None))
            if broken is not None:
                broken.close()
            shard.mark_down(life, str(error))
            return [None] * len(indices)
        if connection.has_late:  # the shard is slow, and not down
            self._connections.pop(shard)
            connection.close()
        shard.mark_useful()
        return outcomes

    def _connection(self, shard: Shard, life: int) -> Connection:
        known = self._connections.get(shard)
        if known is not None and known[0] == life:
            return known[1]
        if known is not None:
            known[1].close()
            del self._connections[shard]
        connection = shard.open()
        self._connections[shard] = (life, connection)
        return connection

    def _forget_all_but(self, shards: Sequence[Shard]) -> None:
        for shard in [known for known in self._connections if known not in shards]:
            self._connections.pop(shard)[1].close()
