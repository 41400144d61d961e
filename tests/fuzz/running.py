"""Runs subjects over numbered inputs, each with its own generator, and reports undeclared outcomes."""

import random
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.subject import Subject

SLOW_SECONDS = 2.0
"""The limit of one input: a reader that takes longer hangs, on a machine that has a core for it."""
HUNG_SECONDS = 20.0
"""The time after which a reader is interrupted: one that never ends would otherwise hang the fuzzer, and say nothing."""
GROWTH_BYTES_MAX = 400 << 20
"""The limit for the growth of the process's largest size, over one subject's inputs."""
ROOT = Path(__file__).parents[2]


class Hung(BaseException):
    """Interrupts a reader that does not end. No `except Exception` of the reader swallows it."""


@dataclass(frozen=True)
class Finding:
    """An undeclared outcome, with its first input. count: number of such inputs. again: seed and number of the first one."""

    subject: str
    what: str
    count: int
    again: str


def fuzz(kinds: Sequence[Callable[[], Subject]], inputs: int, seed: int, say: Callable[[str], None]) -> list[Finding]:
    """Run `inputs` inputs in all, by the subjects' shares."""
    findings: list[Finding] = []
    for kind in kinds:
        subject = kind()
        try:
            findings += fuzz_one(subject, max(1, round(inputs * subject.share)), seed, say)
        finally:
            subject.close()
    return findings


def fuzz_one(subject: Subject, inputs: int, seed: int, say: Callable[[str], None], first: int = 0) -> list[Finding]:
    counts: dict[str, int] = {}
    again: dict[str, str] = {}
    started, before = time.monotonic(), _largest_bytes()
    for number in range(first, first + inputs):
        what = _outcome(subject, f"{seed}/{subject.name}/{number}")
        if what:
            counts[what] = counts.get(what, 0) + 1
            again.setdefault(what, f"--only {subject.name!r} --seed {seed} --first {number} --inputs 1")
    growth = _largest_bytes() - before
    if growth > GROWTH_BYTES_MAX:
        counts[f"the process grew by {growth >> 20} MB"] = 1
    seconds, found = time.monotonic() - started, sum(counts.values())
    say(f"  {subject.name}: {inputs} inputs, {seconds:.1f} s, {growth >> 20} MB, {found} findings")
    return [Finding(subject.name, what, count, again.get(what, "")) for what, count in counts.items()]


def _outcome(subject: Subject, seed: str) -> str:
    """Return the fault in the subject's treatment of an input; empty where there is none.

    An input that took long is given once more: a reader that hangs does so again, a busy machine seldom does.
    """
    try:
        for _ in range(2):
            started = time.monotonic()
            with _interrupted_after(HUNG_SECONDS):
                subject.run(random.Random(seed))
            if time.monotonic() - started <= SLOW_SECONDS:
                return ""
    except Hung as hung:
        # Without the line: a reader that goes round and round is interrupted anywhere.
        return f"does not end within {HUNG_SECONDS:g} s in {_place(hung).rpartition(':')[0]}"
    except Exception as error:
        said = f": {str(error)[:200]}" if isinstance(error, AssertionError) else ""
        return f"{type(error).__name__} at {_place(error)}{said}"
    return f"more than {SLOW_SECONDS:g} s"


def _place(error: BaseException) -> str:
    """Return our innermost line of an error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    ours = [frame for frame in frames if ".venv" not in frame.filename and frame.name != _interrupt.__name__]
    return f"{Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].lineno}"


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise Hung in the block when it takes longer. Only the main thread can be interrupted; elsewhere nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Hung


def _largest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
