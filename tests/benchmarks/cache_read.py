"""Direct cache read against redis-py `get`: the same values, the same Redis, interleaved."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import redis
import redis.utils
import torch

from frostline_contract.cache_identity import HEADER, CacheIdentity
from frostline_contract.cache_tag import tags_of
from frostline_controller.cluster.local.redis_process import RedisProcess, start_redis
from frostline_trainer.cache.codec import make_codec
from frostline_trainer.cache.outcomes import Outcome
from frostline_trainer.cache.resp import Connection
from frostline_trainer.cache.values import ValueLayout
from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, ratios

VALUE_SHAPE = (192, 768)
"""float32: 0.59 MB, a ViT-B/16 boundary of 197 tokens in round numbers."""

BATCH = 32
ROUNDS = 40
PYTHON, C = "redis-py", "redis-py with hiredis"


class Goal(NamedTuple):
    """The least ratios: of reads whose values are dropped, and of reads that end in the batch's row. None: no goal."""

    wire: float | None
    in_place: float | None


GOALS = {PYTHON: Goal(1.5, 1.5), C: Goal(None, 1.0)}
"""The goals by redis-py's parser."""


def cache_read(effort: Effort) -> Report:
    """Measure batches of 32 values read in each way."""
    codec = make_codec("none", VALUE_SHAPE, torch.float32)
    layout = ValueLayout(codec, tags_of("a secret of the benchmark"))
    keys = [CacheIdentity("benchmark", "d", "train", 6).key(sample, 0) for sample in range(BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), 256 << 20)
        direct = Connection("127.0.0.1", server.port, server.password, 0, 5.0)
        libraries = {name: _library(server, parser) for name, parser in _parsers().items()}
        try:
            payload = memoryview(os.urandom(codec.payload_bytes))
            stored = [(key, (layout.header(payload, key), payload)) for key in keys]
            assert set(direct.set_many(stored, time.monotonic() + 30)) == {Outcome.DONE}
            ways = _ways(direct, libraries, layout, keys)
            seconds, processor = interleave_both(ways, effort.pairs(ROUNDS), warm_up=2)
        finally:
            direct.close()
            for library in libraries.values():
                library.close()
            server.stop()
    gigabytes = BATCH * layout.mean_value_bytes / 1e9
    return Report(
        "Direct cache read against redis-py",
        f"{BATCH} values of {layout.mean_value_bytes / 1e6:.2f} MB (a ViT-B/16 boundary activation) from one real Redis over "
        "loopback: our client, which receives into preallocated rows, against redis-py's `get` for each key. *wire*: what "
        "arrives is dropped. *in place*: redis-py's bytes are copied into the batch row, as a trainer needs them; ours lie "
        f"there. *checked*: ours verifies header and signature as well. redis-py {redis.__version__}, "
        f"{'with and without hiredis' if redis.utils.HIREDIS_AVAILABLE else 'its Python parser (hiredis is not installed)'}.",
        [row for name in libraries for row in _rows(name, seconds, processor, gigabytes)],
    )


def _rows(library: str, seconds: dict[str, list[float]], processor: dict[str, list[float]], gigabytes: float) -> list[Row]:
    def row(case: str, ours: str, theirs: str, goal: float | None) -> Row:
        speed = {label: gigabytes / sorted(seconds[way])[len(seconds[way]) // 2]
                 for label, way in (("direct GB/s", ours), ("redis-py GB/s", theirs))}  # fmt: skip
        return Row(
            f"{case}, {library}",
            "redis-py / direct",
            "x",
            Spread.of(ratios(seconds[theirs], seconds[ours])),
            speed,
            at_least=goal,
        )

    goal = GOALS[library]
    return [
        row("wire", "direct", library, goal.wire),
        row("in place", "direct", f"{library}, copied", goal.in_place),
        row("checked", "direct, checked", f"{library}, copied", None),
        Row(
            f"client's processor time, {library}",
            "redis-py / direct",
            "x",
            Spread.of(ratios(processor[library], processor["direct"])),
        ),
    ]


def _parsers() -> dict[str, Any]:
    """redis-py's parsers of RESP 2, by name: its own in Python, and hiredis where it is installed."""
    parsers: dict[str, Any] = {PYTHON: redis.connection._RESP2Parser}
    if redis.utils.HIREDIS_AVAILABLE:
        parsers[C] = redis.connection._HiredisParser
    return parsers


def _library(server: RedisProcess, parser: Any) -> redis.Redis:
    pool = redis.ConnectionPool(host="127.0.0.1", port=server.port, password=server.password, parser_class=parser, protocol=2)
    return redis.Redis(connection_pool=pool)


def _ways(
    direct: Connection, libraries: dict[str, redis.Redis], layout: ValueLayout, keys: list[bytes]
) -> dict[str, Callable[[], object]]:
    rows = memoryview(bytearray(BATCH * layout.payload_bytes))
    headers = [memoryview(bytearray(HEADER.size)) for _ in keys]
    pieces = [rows[i * layout.payload_bytes : (i + 1) * layout.payload_bytes] for i in range(BATCH)]
    targets = [[header, piece] for header, piece in zip(headers, pieces, strict=True)]

    def fetch() -> None:
        assert set(direct.get_many(keys, targets, time.monotonic() + 30)) == {Outcome.DONE}

    def fetch_and_check() -> None:
        fetch()
        faults = [layout.fault(*target, key) for target, key in zip(targets, keys, strict=True)]
        assert faults == [None] * BATCH

    def dropped(library: redis.Redis) -> None:
        for key in keys:
            library.get(key)

    def copied(library: redis.Redis) -> None:
        for key, piece in zip(keys, pieces, strict=True):
            piece[:] = memoryview(library.get(key))[HEADER.size :]

    ways: dict[str, Callable[[], object]] = {"direct": fetch, "direct, checked": fetch_and_check}
    for name, library in libraries.items():
        ways[name] = lambda library=library: dropped(library)
        ways[f"{name}, copied"] = lambda library=library: copied(library)
    return ways
