"""Waits that an interruption always ends, even if the library never reports it."""

import gc
import threading
import time
import weakref

import pytest

from frostline_trainer.transport import gloo
from frostline_trainer.transport.gloo import wait_for

GROUP = object()
"""Stands for the works' group, of which a wait that ends asks nothing."""


class Work:
    """Work that ends when `over` is set, with its error if it has one. reported: the arguments of its wait."""

    def __init__(self, error: str = "") -> None:
        self.over, self.error = threading.Event(), error
        self.reported: tuple = ()

    def wait(self, *arguments: object) -> None:
        self.reported = arguments
        self.over.wait(30.0)
        if self.error:
            raise RuntimeError(self.error)


def ended(error: str = "") -> Work:
    work = Work(error)
    work.over.set()
    return work


def waiters() -> int:
    return sum(thread.name == "waits" for thread in threading.enumerate())


def test_a_wait_ends_as_the_library_says() -> None:
    work = ended()
    wait_for([work], ("patience",), threading.Event(), GROUP)
    assert work.reported == ("patience",)
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait_for([ended("closed by peer")], (), threading.Event(), GROUP)


def test_several_are_waited_for_in_order_and_the_first_error_is_told() -> None:
    works = [ended(), ended("closed by peer"), ended()]
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait_for(works, ("patience",), threading.Event(), GROUP)
    assert [work.reported for work in works] == [("patience",), ("patience",), ()]


def test_what_is_lost_ends_with_the_interruption_and_the_next_wait_is_no_slower() -> None:
    lost, interrupted = Work(), threading.Event()
    threading.Timer(0.2, interrupted.set).start()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="a message under way in it is lost"):
        wait_for([lost], (), interrupted, group := Work())
    assert time.monotonic() - began < 25.0, "the lost one waits for 30 s"
    wait_for([ended()], (), threading.Event(), GROUP)  # not behind the lost one
    lost.over.set()
    kept = weakref.ref(group)
    del group
    gc.collect()
    assert kept() is not None, "its destructor would wait for the message"


def test_an_interrupted_wait_that_says_what_is_wrong_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "GRACE_SECONDS", 30.0)  # the error comes just as the grace begins
    work, interrupted = Work("closed by peer"), threading.Event()
    interrupted.set()
    threading.Timer(0.1, work.over.set).start()
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait_for([work], (), interrupted, GROUP)


def test_a_waiting_thread_ends_with_its_caller() -> None:
    before = waiters()
    callers = [threading.Thread(target=wait_for, args=([ended()], (), threading.Event(), GROUP)) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    deadline = time.monotonic() + 10.0
    while waiters() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
