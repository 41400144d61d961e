"""The cache server as a process, over real gRPC: roles, admission, leases, sweeping, statistics, shutdown."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cache_stack import CacheStack, cache_stack, wait_until

from frostline_contract.cache_identity import CacheIdentity
from frostline_proto.v1 import cache_pb2, cache_pb2_grpc
from frostline_rpc.auth import CONTROLLER, OPERATOR, WORKER
from frostline_rpc.channel import open_channel
from tests.in_time import fastest_of_three, in_time

RESIDENT_BYTES_MAX = 120 << 20


@pytest.fixture(scope="module")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheStack]:
    with cache_stack(tmp_path_factory.mktemp("server"), 2, 16 << 20, "--memory-bytes", str(24 << 20)) as running:
        yield running


@pytest.fixture
def stub(running_stack: CacheStack) -> Iterator[cache_pb2_grpc.CacheControlStub]:
    with open_channel(running_stack.address, running_stack.tokens.by_role[WORKER]) as channel:
        yield cache_pb2_grpc.CacheControlStub(channel)


def named(name: str, boundary: int = 2) -> cache_pb2.Identity:
    return cache_pb2.Identity(prefix_revision=name, dataset_digest="d", split="train", boundary=boundary)


def code_of(call) -> str:  # type: ignore[no-untyped-def]
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return f"{caught.value.code().name}: {caught.value.details()}"


def test_shards_are_described_with_their_run_ids(running_stack: CacheStack, stub: cache_pb2_grpc.CacheControlStub) -> None:
    answer = stub.DescribeShards(cache_pb2.DescribeShardsRequest(), timeout=60)
    assert [(shard.host, shard.port, shard.up) for shard in answer.shards] == [
        ("127.0.0.1", shard.port, True) for shard in running_stack.shards
    ]
    assert [shard.run_id for shard in answer.shards] == [
        running_stack.redis(index).info("server")["run_id"] for index in range(2)
    ]


@pytest.mark.parametrize(
    ("token", "method", "code"),
    [
        ("wrong", "DescribeShards", "UNAUTHENTICATED"),
        ("", "Statistics", "UNAUTHENTICATED"),
        (OPERATOR, "Admit", "PERMISSION_DENIED"),
        (CONTROLLER, "Lease", "PERMISSION_DENIED"),
    ],
)
def test_strangers_and_wrong_roles_are_refused(running_stack: CacheStack, token: str, method: str, code: str) -> None:
    with open_channel(running_stack.address, running_stack.tokens.by_role.get(token, token)) as channel:
        stub = cache_pb2_grpc.CacheControlStub(channel)
        name = "CacheStatistics" if method == "Statistics" else method
        answer = code_of(lambda: getattr(stub, method)(getattr(cache_pb2, f"{name}Request")(), timeout=60))
    assert answer.startswith(code)


def test_admission_respects_the_budget_and_leases(stub: cache_pb2_grpc.CacheControlStub) -> None:
    def admit(name: str, samples: int) -> cache_pb2.AdmitResponse:
        return stub.Admit(cache_pb2.AdmitRequest(identity=named(name), samples=samples, value_bytes=100_032), timeout=60)

    def give_back(name: str) -> None:
        stub.Lease(cache_pb2.LeaseRequest(identity=named(name), holder="w", seconds=0), timeout=60)

    whole = admit("a", 100)
    assert whole.fraction == 1.0
    part = admit("b", 1000)
    assert 0.05 < part.fraction < 0.12
    assert "are promised to other boundaries" in part.reason
    assert (admit("a", 100).fraction, admit("b", 1000).fraction) == (1.0, part.fraction)
    moved = cache_pb2.AdvanceBoundaryRequest(old_identity=named("a"), new_identity=named("a2", 4))
    answer = stub.AdvanceBoundary(moved, timeout=60)
    assert (answer.old_known, answer.fraction) == (True, 1.0)
    for name in ("a", "b"):
        give_back(name)
    stub.Lease(cache_pb2.LeaseRequest(identity=named("a2", 4), holder="w", seconds=0), timeout=60)
    assert admit("c", 150).fraction == 1.0
    give_back("c")


@pytest.mark.parametrize(
    ("method", "fields", "says"),
    [
        ("Admit", {"identity": cache_pb2.Identity()}, "identity.prefix_revision has 0 characters"),
        ("Admit", {"identity": named("x"), "samples": -1, "value_bytes": 5}, "samples is -1"),
        ("Admit", {"identity": named("x", 0), "samples": 1, "value_bytes": 5}, "identity.boundary is 0"),
        ("Lease", {"identity": named("x"), "seconds": 5}, "holder has 0 characters"),
        ("Lease", {"identity": named("x"), "holder": "w", "seconds": float("nan")}, "seconds is nan"),
        ("AdvanceBoundary", {"old_identity": named("x"), "new_identity": named("x")}, "are the same"),
        ("ReportUse", {"hits": -3}, "hits is -3"),
    ],
)
def test_mistakes_are_invalid_arguments(
    stub: cache_pb2_grpc.CacheControlStub, method: str, fields: dict[str, object], says: str
) -> None:
    answer = code_of(lambda: getattr(stub, method)(getattr(cache_pb2, f"{method}Request")(**fields), timeout=60))
    assert answer.startswith("INVALID_ARGUMENT")
    assert says in answer


def test_use_is_added_up_and_memory_is_redis_own(running_stack: CacheStack, stub: cache_pb2_grpc.CacheControlStub) -> None:
    before = stub.Statistics(cache_pb2.CacheStatisticsRequest(), timeout=60)
    for worker in ("w1", "w2"):
        use = cache_pb2.ReportUseRequest(worker_id=worker, identity=named("s"), hits=7, misses=2, fills=2, read_seconds=0.5)
        stub.ReportUse(use, timeout=60)
    running_stack.redis(0).set("s", b"x" * 1_000_000)
    wait_until(lambda: stub.Statistics(cache_pb2.CacheStatisticsRequest(), timeout=60).values == before.values + 1)
    after = stub.Statistics(cache_pb2.CacheStatisticsRequest(), timeout=60)
    assert (after.hits - before.hits, after.misses - before.misses, after.fills - before.fills) == (14, 4, 4)
    assert after.read_seconds - before.read_seconds == 1.0
    assert after.memory_used_bytes - before.memory_used_bytes >= 1_000_000
    assert after.memory_limit_bytes == 24 << 20


def test_it_stays_small(running_stack: CacheStack, stub: cache_pb2_grpc.CacheControlStub) -> None:
    for index in range(300):
        stub.Admit(cache_pb2.AdmitRequest(identity=named(f"rss-{index}"), samples=1, value_bytes=100), timeout=60)
    status = Path(f"/proc/{running_stack.server.pid}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    assert resident <= RESIDENT_BYTES_MAX, f"{resident >> 20} MiB"


@fastest_of_three
def test_losing_redis_is_reported_and_never_fatal(tmp_path: Path) -> None:
    (folder := tmp_path / str(time.monotonic_ns())).mkdir()  # each attempt has a log of its own
    with cache_stack(folder) as stack, open_channel(stack.address, stack.tokens.by_role[WORKER]) as channel:
        stub = cache_pb2_grpc.CacheControlStub(channel)
        first = stub.DescribeShards(cache_pb2.DescribeShardsRequest(), timeout=60)
        stack.shards[0].process.kill()
        wait_until(lambda: not stub.DescribeShards(cache_pb2.DescribeShardsRequest(), timeout=60).shards[0].up)
        down = stub.DescribeShards(cache_pb2.DescribeShardsRequest(), timeout=60)
        assert down.map_version > first.map_version
        assert stub.Admit(cache_pb2.AdmitRequest(identity=named("x"), samples=1, value_bytes=10), timeout=60).fraction == 1.0
        assert stub.Statistics(cache_pb2.CacheStatisticsRequest(), timeout=60).memory_used_bytes == 0
        started = time.monotonic()
        stack.server.send_signal(signal.SIGTERM)
        assert stack.server.wait(60) == 0
        took = time.monotonic() - started
        log = (folder / "cache_server.log").read_text().splitlines()
        events = [json.loads(line)["event"] for line in log]
        assert [event for event in events if event.startswith("shard ")] == ["shard up", "shard down"]
        assert events[-1] == "stopped"
        in_time(took, 3.0, "the end")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--shards", "nowhere"], "'nowhere' is not host:port"),
        (["--shards", "a:1", "--memory-bytes", "5"], "--memory-bytes is 5"),
        (["--shards", "a:1"], "tokens.json"),
    ],
)
def test_a_users_mistake_ends_with_one_line_and_code_2(tmp_path: Path, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "frostline_cache_server", "--run-dir", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_contract_and_wire_name_the_same_identity() -> None:
    message = named("r", 3)
    assert CacheIdentity(message.prefix_revision, message.dataset_digest, message.split, message.boundary).namespace() == (
        CacheIdentity("r", "d", "train", 3).namespace()
    )
