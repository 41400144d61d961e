"""The RESP client against a real Redis, and against peers that are none."""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from frostline_controller.cluster.local.redis_process import RedisProcess
from frostline_trainer.cache.lane import Lane, Shard
from frostline_trainer.cache.outcomes import ConnectionFault, Outcome, ProtocolSurprise
from frostline_trainer.cache.resp import Connection
from tests.in_time import fastest_of_three, in_time, within

PATIENT_SECONDS = 30.0
"""A silence that no peer here keeps, except where silence is what a test is about."""


def soon() -> float:
    return time.monotonic() + 60.0


@pytest.fixture
def plain(redis_server: RedisProcess) -> redis.Redis:
    """Another client, to look at and damage what ours stored."""
    return redis.Redis(port=redis_server.port, password=redis_server.password)


@pytest.fixture
def connection(redis_server: RedisProcess) -> Iterator[Connection]:
    opened = Connection("127.0.0.1", redis_server.port, redis_server.password, 0, PATIENT_SECONDS)
    yield opened
    opened.close()


@pytest.mark.parametrize("size", [1, 31, 100, 4096, 32 * 1024, 32 * 1024 + 1, 300_000, 1_200_000])
def test_values_of_every_size_come_back_in_order_with_misses_between(connection: Connection, size: int) -> None:
    values = [os.urandom(size) for _ in range(9)]
    stored = [(b"k%d" % i, [value[:7], memoryview(value)[7:]]) for i, value in enumerate(values) if i % 3 != 1]
    assert connection.set_many(stored, soon()) == [Outcome.DONE] * len(stored)
    buffers = [bytearray(size) for _ in values]
    targets = [[memoryview(buffer)[:7], memoryview(buffer)[7:]] for buffer in buffers]
    outcomes = connection.get_many([b"k%d" % i for i in range(9)], targets, soon())
    assert outcomes == [Outcome.ABSENT if i % 3 == 1 else Outcome.DONE for i in range(9)]
    assert [bytes(buffers[i]) for i in range(9) if i % 3 != 1] == [values[i] for i in range(9) if i % 3 != 1]


def test_thousands_of_small_values_in_one_call(connection: Connection) -> None:
    values = {b"s%d" % i: os.urandom(200) for i in range(3000)}
    connection.set_many([(key, [value]) for key, value in values.items()], soon())
    buffers = [bytearray(200) for _ in values]
    outcomes = connection.get_many(list(values), [[memoryview(buffer)] for buffer in buffers], soon())
    assert outcomes == [Outcome.DONE] * 3000
    assert [bytes(buffer) for buffer in buffers] == list(values.values())


def test_wrong_length_and_wrong_type_spoil_only_their_own_key(connection: Connection, plain: redis.Redis) -> None:
    plain.set("good", b"x" * 100_000)
    plain.set("short", b"y" * 99_999)
    plain.set("long", b"z" * 200_000)
    plain.set("empty", b"")
    plain.lpush("list", "a")
    buffers = [bytearray(100_000) for _ in range(6)]
    keys = [b"short", b"list", b"long", b"empty", b"good", b"gone"]
    outcomes = connection.get_many(keys, [[memoryview(buffer)] for buffer in buffers], soon())
    assert outcomes == [Outcome.UNUSABLE] * 4 + [Outcome.DONE, Outcome.ABSENT]
    assert bytes(buffers[4]) == b"x" * 100_000


def test_unlink_ping_and_run_id(connection: Connection, plain: redis.Redis) -> None:
    connection.set_many([(b"a", [b"1"]), (b"b", [b"2"])], soon())
    assert connection.unlink([b"a", b"b", b"c"], soon()) == 2
    connection.ping(soon())
    assert connection.run_id(soon()) == plain.info("server")["run_id"]


def test_wrong_password_is_a_connection_fault(redis_server: RedisProcess) -> None:
    with pytest.raises(ConnectionFault, match="AUTH was answered"):
        Connection("127.0.0.1", redis_server.port, "not the password", 0, PATIENT_SECONDS)


def test_full_redis_refuses_and_the_stream_stays_whole(start_shard: Callable[..., RedisProcess]) -> None:
    small = start_shard(memory_bytes=4 << 20)
    connection = Connection("127.0.0.1", small.port, small.password, 0, PATIENT_SECONDS)
    outcomes = connection.set_many([(b"k%d" % i, [os.urandom(500_000)]) for i in range(12)], soon())
    assert outcomes[0] is Outcome.DONE
    assert outcomes[-1] is Outcome.REFUSED
    connection.ping(soon())
    connection.close()


@fastest_of_three
def test_a_paused_redis_costs_one_silence(redis_server: RedisProcess, plain: redis.Redis) -> None:
    connection = Connection("127.0.0.1", redis_server.port, redis_server.password, 0, 0.3)
    plain.set("k", b"v")
    plain.execute_command("CLIENT", "PAUSE", "5000")
    started = time.monotonic()
    with pytest.raises(ConnectionFault, match=r"silent for 0\.3 s"):
        connection.get_many([b"k"], [[memoryview(bytearray(1))]], soon())
    took = time.monotonic() - started
    connection.close()
    assert took > 0.2
    in_time(took, 1.0, "a silence")


def serve_bytes(chunks: list[bytes], pause_seconds: float = 0.0) -> int:
    """A peer that answers whatever it is asked with `chunks`; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        peer, _ = listener.accept()
        with listener, peer:
            peer.recv(4096)
            for chunk in chunks:
                try:
                    peer.sendall(chunk)
                except OSError:
                    return
                time.sleep(pause_seconds)

    threading.Thread(target=answer, daemon=True).start()
    return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$5\r\nabcdeXX",
        b"$-7\r\n",
        b"$99999999999999999999999\r\n",
        b"$1000000000\r\n",
        b":1\r\n",
        b"*1\r\n$1\r\na\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        random.Random(7).randbytes(20_000).replace(b"\r\n", b"  ").replace(b"$", b" "),
    ],
)
def test_junk_is_a_surprise_never_a_value(reply: bytes) -> None:
    connection = Connection("127.0.0.1", serve_bytes([reply]), None, 0, PATIENT_SECONDS)
    with pytest.raises(ProtocolSurprise):
        connection.get_many([b"k"], [[memoryview(bytearray(5))]], soon())
    connection.close()


def test_a_reply_that_is_cut_off_ends() -> None:
    cut = Connection("127.0.0.1", serve_bytes([b"$100000\r\nabc"]), None, 0, PATIENT_SECONDS)
    with pytest.raises(ConnectionFault, match="closed by the peer"):
        cut.get_many([b"k"], [[memoryview(bytearray(100_000))]], soon())
    cut.close()


@fastest_of_three
def test_a_reply_that_trickles_ends() -> None:
    """Each byte comes long before a silence is over, and the whole reply long after the call's time."""
    silence, time_of_call = 1.0, 0.5
    trickle = Connection("127.0.0.1", serve_bytes([b"$100000\r\n", *[b"a"] * 400], 0.05), None, 0, silence)
    started = time.monotonic()
    with pytest.raises(ConnectionFault, match="time is over"):
        trickle.get_many([b"k"], [[memoryview(bytearray(100_000))]], started + time_of_call)
    took = time.monotonic() - started
    trickle.close()
    in_time(took, time_of_call + silence + 0.3, "a reply that trickles")


@fastest_of_three
def test_what_a_slow_shard_has_sent_counts_and_the_rest_is_late() -> None:
    """Ten values, one each quarter of a second; the call has one second."""
    value = b"v" * 40_000
    shard = Shard("127.0.0.1", serve_bytes([b"$40000\r\n%b\r\n" % value] * 10, 0.25), 0, None, lambda: None)
    lane, checked = Lane(lambda: (shard,)), []
    buffers = [bytearray(40_000) for _ in range(10)]
    outcomes = lane.fetch(
        [b"k%d" % i for i in range(10)], [[memoryview(one)] for one in buffers], time.monotonic() + 1.0, checked.append
    )
    came = len(checked)
    assert 0 < came < 10 and checked == list(range(came))
    assert outcomes == [Outcome.DONE] * came + [Outcome.LATE] * (10 - came)
    assert all(bytes(one) == value for one in buffers[:came])
    assert shard.up, "it is slow, and not down"
    assert not lane._connections, "the next read is not given this one's replies"
    lane.close()


@fastest_of_three
def test_a_name_that_no_server_resolves_costs_one_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver whose servers are silent keeps its caller for half a minute."""
    system = socket.getaddrinfo

    def silent(host: str, *arguments: object, **options: object) -> object:
        if host == "silent.example":
            if options.get("flags") == socket.AI_NUMERICHOST:
                raise socket.gaierror("a name")
            time.sleep(5.0)
        return system(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with within(2.0, "the name"), pytest.raises(ConnectionFault, match=r"not resolved within 0\.2 s"):
        Connection("silent.example", 6379, None, 0, 0.2)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "\udcff"])
def test_a_name_that_is_nobodys_is_a_fault_of_the_connection(host: str) -> None:
    with pytest.raises(ConnectionFault):
        Connection(host, 6379, None, 0, 2.0)
