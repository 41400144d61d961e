"""The test network itself, without a cluster: cut connections wait and lose nothing, refused ones are refused."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.addresses import Addresses
from tests.cluster.network import Network, Target

ANSWER_SECONDS = 30.0
"""Far above the time of an answer on a busy machine."""


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.stop()


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends received bytes back, on many connections."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve_one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionResetError):  # some tests reset connections on purpose
            while piece := connection.recv(65536):
                connection.sendall(piece)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_cut_holds_up_what_is_under_way_and_a_heal_delivers_it(network: Network, echo: int) -> None:
    port = network.listen("a", "127.0.0.1", 0, lambda: Target("127.0.0.1", echo, "b"))
    with _connected(port) as connection:
        assert _answer(connection, b"one") == b"one"
        for node in ("a", "b"):
            network.cut(node, True)
            connection.sendall(b"two")
            with _impatient(connection), pytest.raises(TimeoutError):
                connection.recv(3)
            with _connected(port) as another, _impatient(another), pytest.raises(TimeoutError):
                _answer(another, b"x")
            network.cut(node, False)
            assert connection.recv(3) == b"two"


def test_a_cut_node_reaches_itself(network: Network, echo: int) -> None:
    port = network.listen("a", "127.0.0.1", 0, lambda: Target("127.0.0.1", echo, "a"))
    network.cut("b", True)
    with _connected(port) as connection:
        assert _answer(connection, b"one") == b"one"


def test_nobody_behind_it_is_a_refusal(network: Network) -> None:
    for choose in (lambda: None, lambda: Target("127.0.0.1", 1)):
        port = network.listen("a", "127.0.0.1", 0, choose)
        with pytest.raises(ConnectionResetError), _connected(port) as connection:
            assert connection.recv(1) != b"", "an orderly end is no refusal"


def test_megabytes_pass_both_ways_and_an_end_is_passed_on(network: Network, echo: int) -> None:
    port = network.listen("a", "127.0.0.1", 0, lambda: Target("127.0.0.1", echo))
    data = bytes(range(256)) * (1 << 14)
    with _connected(port) as connection:
        threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)), daemon=True).start()
        received = b""
        while piece := connection.recv(1 << 20):
            received += piece
    assert received == data


def test_a_machine_that_starts_anew_resets_its_connections(network: Network, echo: int) -> None:
    port = network.listen("a", "127.0.0.1", 0, lambda: Target("127.0.0.1", echo, "b"))
    with _connected(port) as connection:
        assert _answer(connection, b"one") == b"one"
        network.reset("b")
        with pytest.raises(ConnectionResetError):
            assert connection.recv(1) != b""


def test_two_clusters_have_other_addresses() -> None:
    one, other = Addresses.claim(), Addresses.claim()
    try:
        assert one.number != other.number
        assert one.service(3, f"10.{one.number}.255.77") == f"127.{one.number}.131.77"
    finally:
        one.release()
        other.release()


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)


@contextlib.contextmanager
def _impatient(connection: socket.socket) -> Iterator[None]:
    """Let the connection wait for a moment only: no answer is expected."""
    connection.settimeout(0.5)
    yield
    connection.settimeout(ANSWER_SECONDS)


def _answer(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(len(data))
