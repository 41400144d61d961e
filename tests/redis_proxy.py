"""A proxy in front of a real Redis that delays or damages the bytes: the effect of a bad network or a bad machine on a cache."""

import random
import socket
import threading
import time
from dataclasses import replace

from frostline_controller.cluster.local.redis_process import RedisProcess

CHUNK_BYTES = 16384


class RedisProxy:
    """Passes bytes in both directions. Its treatment of them may be changed at any time.

    delay_seconds, chunk_bytes: it waits for delay_seconds before each chunk of chunk_bytes. flip_share: share of such chunks in
    which one bit is flipped, by a seeded generator; flipped: how many were.
    """

    def __init__(self, redis: RedisProcess, seed: int = 0) -> None:
        self._redis = redis
        self.delay_seconds, self.chunk_bytes, self.flip_share = 0.0, CHUNK_BYTES, 0.0
        self.flipped = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def shard(self) -> RedisProcess:
        """The same Redis, with the address of this proxy."""
        return replace(self._redis, port=self._listener.getsockname()[1])

    def close(self) -> None:
        self._closed = True
        self._listener.close()

    def __enter__(self) -> "RedisProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._redis.port))
            except OSError:
                return
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        """Pass bytes until either side ends; then end both."""
        try:
            while data := source.recv(self.chunk_bytes):
                time.sleep(self.delay_seconds)
                target.sendall(self._damaged(data))
        except OSError:
            return
        finally:
            for end in (source, target):
                end.close()

    def _damaged(self, data: bytes) -> bytes:
        with self._lock:
            if self._random.random() >= self.flip_share:
                return data
            self.flipped += 1
            bit = self._random.randrange(8 * len(data))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)
