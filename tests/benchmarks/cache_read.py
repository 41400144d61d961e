"""Direct cache read against redis-py `get`: the same values, the same Redis, interleaved, ratio of medians.

Run as a script it prints the result as JSON; `measure()` returns it.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis
import redis.utils

from frostline_contract.cache_identity import HEADER, CacheIdentity
from frostline_controller.local.redis_process import start_redis
from frostline_trainer.cache.codec import make_codec
from frostline_trainer.cache.layout import ValueLayout
from frostline_trainer.cache.resp import Connection, Outcome

VALUE_SHAPE = (192, 768)
"""float32: 0.59 MB, a ViT-B/16 boundary of 197 tokens in round numbers."""

BATCH = 32


def measure(rounds: int = 15) -> dict[str, float | int | str | bool]:
    """Seconds for one batch of reads by each way, medians of interleaved rounds, and their ratios.

    direct: the wire only, into preallocated rows. checked: with the checksums that a worker verifies as well. redis_py: one
    `get` a value; redis_py_copied: with the copy into the batch row that a trainer needs. Processor time of the client's thread
    is compared too: on a loaded machine it says more than the clock.
    """
    import torch

    codec = make_codec("none", VALUE_SHAPE, torch.float32)
    layout = ValueLayout(codec)
    identity = CacheIdentity("benchmark", "d", "train", 6)
    keys = [identity.key(sample, 0) for sample in range(BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), 256 << 20)
        try:
            library = redis.Redis(port=server.port, password=server.password)
            direct = Connection("127.0.0.1", server.port, server.password, 0, 5.0)
            payload = memoryview(os.urandom(codec.payload_bytes))
            stored = [(key, (layout.header(payload), payload)) for key in keys]
            assert set(direct.set_many(stored, time.monotonic() + 30)) == {Outcome.DONE}
            ways = _ways(direct, library, layout, keys)
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            cpu: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(rounds + 2):
                for name, way in ways.items():
                    started, started_cpu = time.perf_counter(), time.thread_time()
                    way()
                    if turn >= 2:
                        seconds[name].append(time.perf_counter() - started)
                        cpu[name].append(time.thread_time() - started_cpu)
            direct.close()
            library.close()
        finally:
            server.stop()
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    middle_cpu = {name: statistics.median(values) for name, values in cpu.items()}
    return {
        "value_bytes": layout.value_bytes,
        "batch": BATCH,
        "rounds": rounds,
        "redis_py": redis.__version__,
        "hiredis": bool(redis.utils.HIREDIS_AVAILABLE),
        **{f"{name}_gigabytes_per_second": BATCH * layout.value_bytes / value / 1e9 for name, value in middle.items()},
        "ratio_of_client_cpu": middle_cpu["redis_py"] / middle_cpu["direct"],
        "ratio": middle["redis_py"] / middle["direct"],
        "ratio_copied": middle["redis_py_copied"] / middle["direct"],
        "ratio_checked": middle["redis_py_copied"] / middle["checked"],
    }


def _ways(direct: Connection, library: redis.Redis, layout: ValueLayout, keys: list[bytes]) -> dict[str, Callable[[], object]]:
    rows = memoryview(bytearray(BATCH * layout.payload_bytes))
    headers = [memoryview(bytearray(HEADER.size)) for _ in keys]
    pieces = [rows[i * layout.payload_bytes : (i + 1) * layout.payload_bytes] for i in range(BATCH)]
    targets = [[header, piece] for header, piece in zip(headers, pieces, strict=True)]

    def fetch() -> None:
        assert set(direct.get_many(keys, targets, time.monotonic() + 30)) == {Outcome.DONE}

    def fetch_and_check() -> None:
        fetch()
        faults = [layout.fault(*target) for target in targets]
        assert faults == [None] * BATCH

    def library_only() -> None:
        for key in keys:
            library.get(key)

    def library_copied() -> None:
        for key, piece in zip(keys, pieces, strict=True):
            piece[:] = memoryview(library.get(key))[HEADER.size :]

    return {
        "direct": fetch,
        "redis_py": library_only,
        "checked": fetch_and_check,
        "redis_py_copied": library_copied,
    }


if __name__ == "__main__":
    json.dump(measure(), sys.stdout, indent=2)
    print()
