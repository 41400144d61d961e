"""The watchdog interrupts whatever a thread is blocked on; its caller does not wait."""

import socket
import threading
import time

from frostline_trainer.generations.watchdog import Watchdog


class Line:
    """A connection that a thread can be blocked on, interrupted as gloo's are: by shutting its socket down."""

    def __init__(self) -> None:
        self.own, self.peer = socket.socketpair()
        self.interruptions = 0

    def interrupt(self) -> None:
        self.interruptions += 1
        self.own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.own.close()
        self.peer.close()


class Blocking:
    """An interruption like NCCL's abort, which may not return for a while."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate
        self.begun, self.ended = threading.Event(), threading.Event()

    def interrupt(self) -> None:
        self.begun.set()
        self._gate.wait(60)
        self.ended.set()


class Broken:
    def interrupt(self) -> None:
        raise RuntimeError("the communicator is gone already")


def _wait(condition, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def test_a_thread_blocked_on_a_peer_comes_back() -> None:
    watchdog, line, got = Watchdog(), Line(), []
    watchdog.guard("1.1", (Broken(), line))
    blocked = threading.Thread(target=lambda: got.append(line.own.recv(1)))
    blocked.start()
    watchdog.interrupt("1.1")
    blocked.join(60)
    assert got == [b""], "the group after a broken one is interrupted too"
    watchdog.stop()
    line.close()


def test_the_caller_never_waits_for_an_abort() -> None:
    gate, watchdog = threading.Event(), Watchdog()
    slow, line = Blocking(gate), Line()
    watchdog.guard("old", (slow,))
    watchdog.guard("new", (line,))
    watchdog.interrupt()
    assert not slow.ended.is_set()
    assert slow.begun.wait(30)
    assert line.interruptions == 0
    gate.set()
    assert _wait(lambda: line.interruptions == 1)
    watchdog.stop()
    line.close()


def test_a_released_group_is_left_alone() -> None:
    watchdog, kept, released = Watchdog(), Line(), Line()
    watchdog.guard("kept", (kept,))
    watchdog.guard("released", (released,))
    watchdog.release("released")
    watchdog.interrupt("released", "kept", "never heard of")
    assert _wait(lambda: kept.interruptions == 1)
    assert released.interruptions == 0
    watchdog.stop()
    for line in (kept, released):
        line.close()
