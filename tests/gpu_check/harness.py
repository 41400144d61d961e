"""Runs each part in a separate process, which is killed at its limit with all its descendants; the other parts go on."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.gpu_check.findings import Finding, Verdict, read_findings
from tests.gpu_check.setting import ENVIRONMENT
from tests.gpu_check.table import Part

SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans of this process's descendants become its children, so that the remains of a killed part can be found."""
POLL_SECONDS = 0.1
TAIL = 2000
"""The number of characters of a part's output that go into the report after a bad end."""


class Interrupted(Exception):
    """A person or program ends the check; the report is written with the findings so far."""


@dataclass(frozen=True)
class Orders:
    """The settings of every part. device: "cuda" or "cpu". quick: smallest samples. folder: of the parts' files and output."""

    device: str
    quick: bool
    folder: Path
    gpus: int
    nccl: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """The end of a part. ended: "completed", "killed at its limit", "ended with N", "interrupted".

    output: the end of its output, where it did not complete.
    """

    part: Part
    ended: str
    seconds: float
    findings: list[Finding]
    output: str = ""

    @property
    def completed(self) -> bool:
        return self.ended == "completed"


def run_parts(parts: Sequence[Part], orders: Orders, keep: Callable[[Outcome], None]) -> None:
    """Run parts one after the other; `keep` is called with each outcome, also with that of a part that is interrupted.

    Raises Interrupted on SIGINT and SIGTERM.
    """
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for part in parts:
            print(f"== {part.name}: {part.title} (at most {part.seconds} s)", flush=True)
            run_part(part, orders, keep)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_part(part: Part, orders: Orders, keep: Callable[[Outcome], None]) -> None:
    """Run one part until it ends or its limit is reached, and end all processes that it leaves behind."""
    folder = orders.folder / part.name
    folder.mkdir(parents=True)
    findings, output = folder / "findings.jsonl", folder / "output.txt"
    words = {**asdict(orders), "folder": str(folder), "function": part.function}
    started, ended = time.monotonic(), "interrupted"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu_check.part", json.dumps(words)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )  # fmt: skip
        try:
            ended = _wait(process, part.seconds)
        finally:
            end_everything(process)
            seconds = time.monotonic() - started
            text = "" if ended == "completed" else output.read_text(encoding="utf-8", errors="replace")[-TAIL:]
            outcome = Outcome(part, ended, round(seconds, 1), read_findings(findings, f"the part {_in_words(ended)}"), text)
            _print(outcome)
            keep(outcome)


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > deadline:
            return "killed at its limit"
        time.sleep(POLL_SECONDS)
    return "completed" if process.returncode == 0 else f"ended with {process.returncode}"


def end_everything(process: "subprocess.Popen[bytes]") -> None:
    """Kill a part's process and all its descendants, whatever sessions they are in; their orphans are this process's children."""
    while left := _descendants():
        for child in left:
            child.kill()
        psutil.wait_procs(left, timeout=10)
    process.wait()


def _descendants() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [child for child in found if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted(signal.Signals(number).name)


def _in_words(ended: str) -> str:
    words = {"completed": "was over before it came to this", "interrupted": "was interrupted"}
    return words.get(ended, f"was {ended}" if ended.startswith("killed") else ended)


def _print(outcome: Outcome) -> None:
    for finding in outcome.findings:
        mark = f" ({finding.detail})" if finding.detail else ""
        print(f"   {finding.verdict:<9} {finding.line}{mark}", flush=True)
    if not outcome.completed:
        print(f"   the part {outcome.part.name} {outcome.ended}:\n{outcome.output}", flush=True)
    print(f"   {outcome.ended} after {outcome.seconds:.0f} s", flush=True)


def is_bad(outcome: Outcome) -> bool:
    """Whether a promise or assumption does not hold, or the part did not reach its end."""
    return not outcome.completed or any(one.verdict in (Verdict.FAILED, Verdict.REFUTED) for one in outcome.findings)
