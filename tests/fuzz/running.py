"""Runs subjects over numbered inputs, each with a generator of its own, and tells what came out that is not declared."""

import random
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.subject import Subject

SLOW_SECONDS = 2.0
"""Of one input: a reader that takes longer hangs, on a machine that has a core for it."""
GROWTH_BYTES_MAX = 400 << 20
"""Of the process's largest size, over one subject's inputs."""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finding:
    """The first input that came out so; count: how many did. again: seed and number of that input."""

    subject: str
    what: str
    count: int
    again: str


def fuzz(kinds: Sequence[Callable[[], Subject]], inputs: int, seed: int, say: Callable[[str], None]) -> list[Finding]:
    """`inputs` in all, by the subjects' shares."""
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
    """What is wrong with how the subject took an input; empty where nothing is.

    An input that took long is given once more: a reader that hangs does so again, a machine that was busy seldom.
    """
    try:
        for _ in range(2):
            started = time.monotonic()
            subject.run(random.Random(seed))
            if time.monotonic() - started <= SLOW_SECONDS:
                return ""
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
        ours = [frame for frame in frames if ".venv" not in frame.filename]
        place = f"{Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].lineno}"
        return (
            f"{type(error).__name__} at {place}: {str(error)[:200]}"
            if isinstance(error, AssertionError)
            else (f"{type(error).__name__} at {place}")
        )
    return f"more than {SLOW_SECONDS:g} s"


def _largest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
