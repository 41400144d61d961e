"""Several members of a gloo group as threads of the test process: for collectives, which draw no random numbers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from frostline_trainer.transport.collectives import Group, connect_store, open_store

T = TypeVar("T")
SECONDS = timedelta(seconds=60)


def in_group(size: int, member: Callable[[Group], T]) -> list[T]:
    """Run `member(group)` for every member in a thread of its own. Returns their results, in order."""
    server, port = open_store()

    def run(index: int) -> T:
        store = server if index == 0 else connect_store("127.0.0.1", port, SECONDS)
        group = Group(store, "test", index, size, "gloo", SECONDS)
        try:
            return member(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as threads:
        return [future.result() for future in [threads.submit(run, index) for index in range(size)]]
