"""Claims about durations. A machine's other processes only add to one, so the fastest of up to three attempts is asked."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ATTEMPTS = 3


class TooLate(AssertionError):
    """A duration was not below its bound."""


def in_time(seconds: float, bound: float, what: str = "") -> None:
    """Assert that `seconds` is below `bound`. what: took so long, for the message."""
    if not seconds < bound:
        raise TooLate(f"{what or 'it'} took {seconds:.3g} s, which is not below {bound:.3g} s")


@contextmanager
def within(bound: float, what: str = "") -> Iterator[None]:
    """Assert that the block takes less than `bound` seconds. what: it does, for the message."""
    started = time.monotonic()
    yield
    in_time(time.monotonic() - started, bound, what)


def fastest_of_three(test: Callable[..., Any]) -> Callable[..., Any]:
    """Let a test run again where only a duration was too long. Its fixtures stay, so it must be able to begin anew with them."""

    @functools.wraps(test)
    def attempts(*arguments: Any, **named: Any) -> Any:
        for _ in range(ATTEMPTS - 1):
            try:
                return test(*arguments, **named)
            except TooLate:
                continue
        return test(*arguments, **named)

    return attempts
