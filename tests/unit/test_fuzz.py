"""A small part of `make fuzz` in every test run; and that it finds what it is there to find."""

import logging
import random
import signal
import time

import pytest

from tests.fuzz import running
from tests.fuzz.file_subjects import SUBJECTS as FILES
from tests.fuzz.running import fuzz, fuzz_one
from tests.fuzz.subject import Subject
from tests.fuzz.wire_subjects import SUBJECTS as WIRES


@pytest.fixture(autouse=True)
def quiet() -> object:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_only_declared_errors_come_out_of_mutated_input() -> None:
    assert fuzz((*WIRES, *FILES), 10_000, 7, lambda line: None) == []


def test_the_shares_are_of_all_inputs() -> None:
    assert sum(kind.share for kind in (*WIRES, *FILES)) == pytest.approx(1.0)


class Careless(Subject):
    """Takes every byte but one."""

    name, share = "careless", 1.0

    def run(self, rng: random.Random) -> None:
        {**dict.fromkeys(range(255))}[rng.randrange(256)]


def test_an_undeclared_error_is_found_and_can_be_had_again() -> None:
    (finding,) = fuzz_one(Careless(), 5000, 1, lambda line: None)
    assert finding.what.startswith("KeyError at tests/unit/test_fuzz.py:")
    number = int(finding.again.split("--first ")[1].split()[0])
    assert fuzz_one(Careless(), 1, 1, lambda line: None, first=number)[0].count == 1
    assert fuzz_one(Careless(), number, 1, lambda line: None) == []


class Sluggish(Subject):
    """Takes long over some of its turns, by their number."""

    name, share = "sluggish", 1.0

    def __init__(self, slow: set[int]) -> None:
        self._slow, self._turns, self.seconds = slow, 0, 0.0

    def monotonic(self) -> float:
        """The clock by which it takes long."""
        return self.seconds

    def run(self, rng: random.Random) -> None:
        self._turns += 1
        self.seconds += 2 * running.SLOW_SECONDS if self._turns in self._slow else 0.0


@pytest.mark.parametrize(("slow", "found"), [({2}, 0), ({2, 3}, 1)])
def test_who_takes_long_over_the_same_input_twice_hangs(slow: set[int], found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once may be the machine's doing."""
    sluggish = Sluggish(slow)
    monkeypatch.setattr(running, "time", sluggish)
    assert len(fuzz_one(sluggish, 3, 1, lambda line: None)) == found


class Endless(Subject):
    """Never returns, and swallows what it can."""

    name, share = "endless", 1.0

    def run(self, rng: random.Random) -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue


def test_a_reader_that_never_ends_is_interrupted_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HUNG_SECONDS", 0.1)
    before = signal.getsignal(signal.SIGALRM)
    (finding,) = fuzz_one(Endless(), 2, 1, lambda line: None)
    assert (finding.what, finding.count) == ("does not end within 0.1 s in tests/unit/test_fuzz.py", 2)
    assert "--first 0 --inputs 1" in finding.again
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
