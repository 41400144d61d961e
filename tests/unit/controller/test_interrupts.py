"""Requests to stop: they are counted, and end a sleep."""

import os
import signal
import threading
import time

from frostline_controller.local_run.interrupts import interrupts


def test_a_signal_ends_a_sleep_and_a_session_that_ends_is_no_second_request() -> None:
    with interrupts() as asked:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began = time.monotonic()
        asked.sleep(60.0)
        assert time.monotonic() - began < 50.0, "it did not sleep to its end"
        assert asked.count == 1
        os.kill(os.getpid(), signal.SIGHUP)
        assert asked.count == 1
        asked.sleep(0.0)


def test_a_sleep_that_nobody_ends_has_its_length() -> None:
    with interrupts() as asked:
        began = time.monotonic()
        asked.sleep(0.2)
    assert time.monotonic() - began >= 0.2
