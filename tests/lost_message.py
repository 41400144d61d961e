"""A member of a gloo group whose collective never ends, as when gloo has lost a message: run as a program by its test."""

import ctypes
import sys
import threading
import time
from datetime import timedelta

import torch

from frostline_trainer.transport import gloo
from frostline_trainer.transport.collectives import Group, connect_store, open_store
from frostline_trainer.transport.waiting import waits_of

PATIENCE = timedelta(seconds=60)


def main() -> int:
    """Print the end of the interrupted wait and the seconds that closing the group took, then end as any program does."""
    gloo.cut = lambda own, peers: 0  # the connections stay open: the wait for the other member does not end
    server, port = open_store()
    groups = dict[int, Group]()

    def form(index: int) -> None:
        store = server if index == 0 else connect_store("127.0.0.1", port, PATIENCE)
        groups[index] = Group(store, "test", index, 2, "gloo", PATIENCE)

    forming = [threading.Thread(target=form, args=(index,)) for index in range(2)]
    for thread in forming:
        thread.start()
    for thread in forming:
        thread.join()
    # The other member is another process, which goes on: its end, in this one, would wake the wait while Python ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(groups[1]))
    waiter = threading.get_ident()

    def interrupt_the_wait() -> None:
        while not waits_of(waiter).since:
            time.sleep(0.01)
        groups[0].interrupt()

    threading.Thread(target=interrupt_the_wait).start()
    try:
        groups[0].all_reduce_sum(torch.ones(4))
    except RuntimeError as error:
        print(error)
    started = time.monotonic()
    groups.pop(0).close()
    print(f"{time.monotonic() - started:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
