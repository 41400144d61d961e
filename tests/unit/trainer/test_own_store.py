"""A worker's store: only the worker's own address reaches it, and one that has died is replaced."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frostline_proto.v1 import control_pb2
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.forming import Preparation
from frostline_trainer.generations.own_store import OwnStore
from frostline_trainer.process.identity import Identity
from frostline_trainer.transport import gloo
from frostline_trainer.transport.collectives import connect_store, open_store, store_answers
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.integration.scripted_worker import wait_for


def kill(port: int) -> None:
    """End the store's listener under it, as an error in its thread does."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            opened = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            continue
        with opened:
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and opened.getsockname()[1] == port:
                opened.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def store() -> Iterator[OwnStore]:
    store = OwnStore("127.0.0.1", ask_every_seconds=0.05)
    yield store
    store.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_store_listens_at_its_workers_address_alone(host: str) -> None:
    before = gloo.listening()
    try:
        store, port = open_store(host)
    except OSError:
        assert host == "::1", "this machine has no IPv6"
        return
    assert gloo.listening() - before in ({("127.0.0.1", port)}, {("::1", port)})
    client = connect_store(host, port)
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        open_store("192.0.2.1")


def test_a_store_that_answers_is_kept(store: OwnStore) -> None:
    reported: list[tuple[int, int]] = []
    asked = threading.Event()

    def report(dead: int, port: int) -> bool:
        reported.append((dead, port))
        return True

    before = store.port
    store.watch(report)
    assert not asked.wait(0.5)
    assert (reported, store.port) == ([], before)


def test_a_dead_store_is_replaced_and_told_until_somebody_knows(store: OwnStore) -> None:
    reported: list[tuple[int, int]] = []
    known = threading.Event()

    def report(dead: int, port: int) -> bool:
        """Send the report; the controller is away at first."""
        reported.append((dead, port))
        if len(reported) < 3:
            return False
        known.set()
        return True

    dead = store.port
    assert store_answers("127.0.0.1", dead)
    store.watch(report)
    kill(dead)
    assert known.wait(30.0)
    assert set(reported) == {(dead, store.port)}
    assert store.port != dead
    assert store_answers("127.0.0.1", store.port)


def test_a_store_that_takes_connections_and_says_nothing_is_dead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not store_answers("127.0.0.1", silent.getsockname()[1], seconds=0.3)


def test_whoever_waits_in_a_dead_store_is_told_and_does_not_wait_for_the_deadline(tmp_path: Path) -> None:
    """The first plan names the store: the plan is given up, so that the worker reports and gets another one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        plan = make_plan(Segment(Layout(1, 2), 1), None, [port, port])
        name = plan.placement.workers[0]
        box = Mailbox(name)
        identity = Identity(tmp_path, str(tmp_path / "nobody"), "any", "trainer-0", name, "node", "127.0.0.1")
        client = ControlClient(identity.controller, "any", control_pb2.RegisterRequest(worker_id=name), box,
                               control_pb2.HeartbeatRequest, lambda lineage, step, interval: None)  # fmt: skip
        preparation = Preparation(build_case(Case("vit")), identity, box, client, lambda: 0)
        preparation.start()
        box.put_plan(plan)
        wait_for(lambda: preparation._formations, "its groups are being formed")
        time.sleep(0.5)
        preparation.abandon_store("127.0.0.1", port + 1)
        assert preparation._formations, "another store's plans are left alone"
        started = time.monotonic()
        preparation.abandon_store("127.0.0.1", port)
        with pytest.raises(RuntimeError, match="not wanted any more"):
            preparation.next_plan()
        assert time.monotonic() - started < 20.0, "the plan was not given up at once"
        client.stop()
        preparation.stop()
