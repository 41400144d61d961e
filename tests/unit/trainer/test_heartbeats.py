"""A worker's heartbeats: few request an answer, and the stream ends if a requested answer does not come."""

import threading
from collections.abc import Iterator

import pytest

from frostline_proto.v1 import control_pb2 as pb
from frostline_trainer.control import heartbeats
from frostline_trainer.control.heartbeats import ASK_SECONDS, Heartbeats

PATIENCE_SECONDS = 5.0


class Clock:
    """Time as the test sets it; every wait for the next heartbeat takes one second of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(heartbeats.time, "monotonic", lambda: self.now)

    def beats(self) -> tuple[Heartbeats, Iterator[pb.HeartbeatsRequest]]:
        clock = self

        class Stopping(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                clock.now += timeout or 0.0
                return self.is_set()

        made = Heartbeats(lambda: pb.HeartbeatRequest(worker_id="a/1", step=7), Stopping(), lambda: 1.0, PATIENCE_SECONDS)
        return made, iter(made)


def test_the_first_is_answered_and_then_one_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made, beats = Clock(monkeypatch).beats()
    quiet = []
    for _ in range(7):
        request = next(beats)
        assert request.heartbeat.step == 7, "quiet or not, it says how the worker is"
        quiet.append(request.quiet)
        if not request.quiet:
            made.note_answer()
    period = int(ASK_SECONDS)
    assert quiet == [number % period != 0 for number in range(7)]


def test_a_controller_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    made, beats = clock.beats()
    next(beats)
    made.note_answer()
    asked = clock.now
    with pytest.raises(TimeoutError, match="no heartbeat was answered for 5 s"):
        while True:
            next(beats)
    assert clock.now - asked <= ASK_SECONDS + PATIENCE_SECONDS + 1.0


def test_an_older_controller_answers_each_and_is_given_up_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made, beats = Clock(monkeypatch).beats()
    quiet = []
    for _ in range(20):
        quiet.append(next(beats).quiet)
        made.note_answer()
    assert quiet == [False, *[True] * 19], "an answer that was not asked for is one"
    with pytest.raises(TimeoutError):
        for _ in range(20):
            next(beats)
