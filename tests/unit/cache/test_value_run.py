"""Replies in a row: wherever the stream is cut, and whatever it says, each value lies in its place or is given back unread."""

import random
from collections.abc import Sequence

import pytest

from frostline_trainer.cache.value_run import VIEWS_MAX, ValueRun

LENGTH = 37
MIXED = (37, 5000, 9, 6, 120)
"""Of which some take more digits than others."""


def targets_of(count: int, lengths: Sequence[int] = (LENGTH,)) -> tuple[list[bytearray], list[list[memoryview]]]:
    """Buffers of these lengths in turn, each in two parts."""
    buffers = [bytearray(lengths[number % len(lengths)]) for number in range(count)]
    return buffers, [[memoryview(buffer)[:5], memoryview(buffer)[5:]] for buffer in buffers]


def reply(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def receive(run: ValueRun, stream: bytes, most: int, chooser: random.Random) -> bytes:
    """As a socket gives it, `most` bytes a call; what was not received when the run had enough, or was not what it must be."""
    place = 0
    while run.missing and place < len(stream):
        left = min(chooser.randint(1, most), len(stream) - place)
        received = 0
        for view in run.room():
            count = min(len(view), left)
            view[:count] = stream[place : place + count]
            place, left, received = place + count, left - count, received + count
            if not left:
                break
        if not run.note(received):
            break
    return stream[place:]


@pytest.mark.parametrize("lengths", [(LENGTH,), MIXED])
@pytest.mark.parametrize("most", [1, 3, 50, 10**6])
def test_values_lie_in_their_places_wherever_the_stream_is_cut(most: int, lengths: tuple[int, ...]) -> None:
    chooser = random.Random(most)
    values = [chooser.randbytes(lengths[number % len(lengths)]) for number in range(40)]
    buffers, targets = targets_of(40, lengths)
    run = ValueRun(targets)
    assert receive(run, b"".join(map(reply, values)), most, chooser) == b""
    assert (run.missing, run.differs_at) == (0, None)
    assert [bytes(buffer) for buffer in buffers] == values


@pytest.mark.parametrize("most", [1, 4, 200, 10**6])
@pytest.mark.parametrize("odd", [None, b"", b"x" * (LENGTH - 1), b"x" * (LENGTH * 10), b"$-1\r\n" * 8])
@pytest.mark.parametrize("at", [0, 1, 8])
@pytest.mark.parametrize("lengths", [(LENGTH,), MIXED])
def test_the_stream_is_given_back_from_the_first_reply_that_is_another(
    at: int, odd: bytes | None, most: int, lengths: tuple[int, ...]
) -> None:
    chooser = random.Random(f"{at}{odd!r}{most}")
    values: list[bytes | None] = [chooser.randbytes(lengths[number % len(lengths)]) for number in range(9)]
    values[at] = odd
    replies = [reply(value) for value in values]
    buffers, targets = targets_of(9, lengths)
    run = ValueRun(targets)
    unread = receive(run, b"".join(replies), most, chooser)
    assert run.differs_at == at
    assert run.given_back() + unread == b"".join(replies[at:])
    assert [bytes(buffer) for buffer in buffers[:at]] == values[:at]


def test_a_value_that_does_not_end_where_it_must_is_given_back_with_its_end() -> None:
    stream = reply(b"a" * LENGTH) + b"$%d\r\n" % LENGTH + b"b" * LENGTH + b"XX" + reply(b"c" * LENGTH)
    _, targets = targets_of(3)
    run = ValueRun(targets)
    unread = receive(run, stream, 10**6, random.Random(0))
    assert run.differs_at == 1
    assert (run.given_back() + unread).startswith(b"$37\r\n" + b"b" * LENGTH + b"XX")


def test_more_values_than_a_system_call_takes_come_in_several() -> None:
    values = [bytes([number % 251]) * LENGTH for number in range(VIEWS_MAX)]
    buffers, targets = targets_of(len(values))
    run = ValueRun(targets)
    assert len(run.room()) <= VIEWS_MAX
    receive(run, b"".join(map(reply, values)), 10**9, random.Random(1))
    assert [bytes(buffer) for buffer in buffers] == values
