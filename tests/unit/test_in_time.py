"""Claims about durations are asked of the fastest of three attempts, and everything else of the first one."""

import pytest

from tests.in_time import TooLate, fastest_of_three, in_time, within


def attempts_of(seconds: list[float], error: bool = False) -> int:
    """Return the number of attempts of a test that takes so long each time. error: another assertion of it fails."""
    made: list[float] = []

    @fastest_of_three
    def test(bound: float) -> None:
        made.append(seconds[len(made)])
        assert not error
        in_time(made[-1], bound)

    try:
        test(bound=1.0)
    except TooLate:
        return -len(made)
    except AssertionError:
        assert error
    return len(made)


def test_the_fastest_of_three_attempts_counts() -> None:
    assert attempts_of([0.5, 9.0]) == 1
    assert attempts_of([2.0, 0.5, 9.0]) == 2
    assert attempts_of([2.0, 3.0, 0.5, 9.0]) == 3
    assert attempts_of([2.0, 3.0, 1.0, 0.5]) == -3, "too late each time"


def test_what_is_wrong_is_not_asked_again() -> None:
    assert attempts_of([2.0, 0.5], error=True) == 1


def test_a_block_is_measured() -> None:
    with within(60.0):
        pass
    with pytest.raises(TooLate, match="a wait took"), within(0.0, "a wait"):
        pass
