"""The timeout of groups: a member that connects slowly is given up; one that computes slowly never is."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch

from frostline_trainer.transport.collectives import Group, connect_store, open_store

CONNECTING = timedelta(seconds=10)
SLOW_SECONDS = 11.0

OPERATIONS: dict[str, Callable[[Group], None]] = {
    "all_reduce": lambda group: group.all_reduce_sum(torch.ones(3)),
    "broadcast": lambda group: group.broadcast(torch.ones(3), 1),
    "all_gather": lambda group: group.all_gather(torch.ones(4), torch.ones(2)),
    "all_to_all": lambda group: group.all_to_all(torch.ones(4), torch.ones(4), [2, 2], [2, 2]),
    "receive": lambda group: group.receive(torch.ones(3), 1, 5) if group.index == 0 else group.send(torch.ones(3), 0, 5).wait(),
    "expect": lambda group: (
        group.expect(torch.ones(3), 1, 5).wait() if group.index == 0 else group.send(torch.ones(3), 0, 5).wait()
    ),
    "send": lambda group: (
        group.send(torch.ones(8 << 20), 1, 5).wait() if group.index == 0 else group.receive(torch.ones(8 << 20), 0, 5)
    ),
}
"""Member 0 waits in each for member 1, which comes late. What is sent does not fit into the sockets' buffers."""


def test_a_slow_member_is_waited_for_beyond_the_connecting_time() -> None:
    """All operations at once, each in a group of its own, so that the wait is paid once."""
    server, port = open_store()
    waits = {operation: threading.Event() for operation in OPERATIONS}

    def member(operation: str, index: int) -> float:
        group = Group(connect_store("127.0.0.1", port, timedelta(seconds=60)), operation, index, 2, "gloo", CONNECTING)
        group.allow(timedelta(hours=1))
        if index == 1:
            assert waits[operation].wait(120.0)
            time.sleep(SLOW_SECONDS)
        started = time.monotonic()
        if index == 0:
            waits[operation].set()
        OPERATIONS[operation](group)
        waited = time.monotonic() - started
        group.close()
        return waited

    with ThreadPoolExecutor(2 * len(OPERATIONS)) as threads:
        started = {(name, index): threads.submit(member, name, index) for name in OPERATIONS for index in range(2)}
        waited = {name: started[name, 0].result() for name in OPERATIONS}
    assert min(waited.values()) > CONNECTING.total_seconds(), waited
    del server
