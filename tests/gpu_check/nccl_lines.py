"""The assumptions of the trainer and the simulated NCCL about NCCL, one line each: confirmed or refuted by two members."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import open_store
from tests.gpu_check import nccl_acts
from tests.gpu_check.findings import Verdict
from tests.gpu_check.nccl_seats import ANSWER, ThreadSeat
from tests.gpu_check.setting import Setting, member_environment
from tests.integration import test_transport
from tests.simulated_members import in_threads
from tests.simulated_nccl import Network
from tests.warm_workers import WarmWorkers


@dataclass(frozen=True)
class Ended:
    """The end of both members. answers: the result of each member's act, None where it did not return.

    codes: exit status of each, None where it was killed at the limit. said: the end of their output.
    """

    answers: list[Any]
    codes: list[int | None] = field(default_factory=lambda: [0, 0])
    said: str = ""


Judge = Callable[[Ended], bool]
Show = Callable[[Ended], dict[str, float]]


@dataclass(frozen=True)
class Line:
    """One assumption.

    Attributes:
        act: of nccl_acts.
        text: the assumption.
        holds: whether it held; None: a figure on which nothing relies.
        figures: the figures to report.
        seconds: limit of both members.
        simulated: whether the simulation has the rule.
        quiet: whether torch's watchdog is switched off, as in a worker.
        shares: whether settings of the library let two ranks share a GPU.
    """

    act: str
    text: str
    holds: Judge | None
    figures: Show = lambda ended: {}
    seconds: float = 60.0
    simulated: bool = True
    quiet: bool = True
    shares: bool = True


def _both(ended: Ended, name: str) -> bool:
    return all(answer is not None and bool(answer.get(name)) for answer in ended.answers)


def _of(place: int, *names: str) -> Show:
    def show(ended: Ended) -> dict[str, float]:
        answer = ended.answers[place] or {}
        return {name: float(answer[name]) for name in names if answer.get(name) is not None}

    return show


def _one(ended: Ended, place: int, /, **wanted: Any) -> bool:
    answer = ended.answers[place]
    return answer is not None and all(answer.get(name.replace("_", " ")) == value for name, value in wanted.items())


def _refuses(raised: str) -> bool:
    """Whether an error says that two ranks have one device, in torch's words where it leaves out the library's."""
    return "uplicate" in raised or "invalid usage" in raised


LINES: tuple[Line, ...] = (
    Line("facts", "communicators can be made on this machine", lambda e: all(answer is not None for answer in e.answers),
         _of(0, "first s", "second s", "first MiB", "second MiB")),
    Line("order", "messages of a channel meet in the order of their calls, whatever their tags",
         lambda e: _both(e, "done") and e.answers[1]["values"] == [1.0, 2.0]),
    Line("early_wait", "wait() returns before the message is there, and the device waits for it",
         lambda e: _one(e, 1, done=True, done_early=False, value=5.0) and e.answers[1]["wait s"] < 1.0, _of(1, "wait s")),
    Line("first_message", "the first message between two members makes the host wait (why a channel's first use is a message)",
         lambda e: _one(e, 1, done=True) and e.answers[1]["wait s"] > 1.0, _of(1, "wait s"), simulated=False),
    Line("crossing_on_one", "two directions on one communicator wait for each other: 1F1B stops once messages are large",
         lambda e: any(answer is not None and answer["stuck KiB"] for answer in e.answers),
         lambda e: {"passes up to KiB": float(max((e.answers[0] or {}).get("passed KiB") or [0]))}, seconds=120.0),
    Line("crossing_on_two", "a communicator a direction lets them pass at every size",
         lambda e: all(answer is not None and not answer["stuck KiB"] for answer in e.answers), _of(0, "abort s"), seconds=120.0),
    Line("silence", "the death of a peer does not end what waits for it",
         lambda e: _one(e, 1, done=False), _of(1, "abort s")),
    Line("silence", "an abort ends that work without an error, and leaves the device usable",
         lambda e: _one(e, 1, ended=True, drained=True, usable=True, wait_raised="")),
    Line("silence", "the library does not tell of a dead peer by itself (nothing relies on it)", None,
         lambda e: {"told an error": float((e.answers[1] or {}).get("error") not in ("SUCCESS", None))}),
    Line("lonely", "a peer that does not come ends the connecting at its deadline, and the device stays usable",
         lambda e: _one(e, 0, usable=True) and "did not come" in e.answers[0]["raised"] and e.answers[0]["after s"] < 10.0,
         _of(0, "after s")),
    Line("duplicate", "two ranks on one GPU are refused when they connect, with an error",
         lambda e: any(answer is not None and _refuses(answer["raised"]) for answer in e.answers), shares=False),
    Line("two_sum", "the sum of two ranks has the bits of a + b", lambda e: _both(e, "equal")),
    Line("moved", "all-to-all and all-gather change no bit", lambda e: _both(e, "equal")),
    Line("survivor", f"with the worker's environment a survivor lives on for {nccl_acts.ALIVE_SECONDS:g} s",
         lambda e: e.codes[1] == 0 and _one(e, 1, usable=True), seconds=130.0, simulated=False),
    Line("survivor", "with torch's own defaults it is ended (why the environment is set)",
         lambda e: e.codes[1] not in (0, None), seconds=130.0, simulated=False, quiet=False),
    Line("short_timeout", "a work's timeout ends the process (why works may take a day)",
         lambda e: e.codes[1] not in (0, None), seconds=130.0, simulated=False, quiet=False),
    Line("beside", "connecting beside a running generation comes to its end (nothing relies on it: it happens at the switch)",
         None, lambda e: {"steps beside": float((e.answers[0] or {}).get("steps", -1)),
                          "both ended": float(all(answer is not None and "steps" in answer for answer in e.answers))},
         seconds=90.0, simulated=False),
    Line("generations", "communicators that are made and aborted again and again leave the device usable",
         lambda e: _both(e, "usable"), _of(0, "making three s", "aborting three s", "kept MiB"), seconds=120.0),
)  # fmt: skip
"""In this order; lines of one act share its answers."""
QUICK = ("order", "early_wait", "crossing_on_two")


def nccl_lines(setting: Setting) -> None:
    """Check every line, over two processes on a GPU, or over simulated NCCL without one."""
    lines = [line for line in LINES if not setting.quick or line.act in QUICK]
    setting.findings.expect([line.text for line in lines])
    if setting.on_gpu:
        setting.findings.expect([_clause(name) for name in test_transport.EXPECTED])
        _ask_all(setting, lines)
        ask_contract(setting)
        return
    for act in dict.fromkeys(line.act for line in lines if line.simulated):
        _add(setting, [line for line in lines if line.act == act and line.simulated], simulated(act))
    for line in lines:
        if not line.simulated:
            setting.findings.add(line.text, Verdict.UNSEEN, "the simulation has no such rule: only a GPU can say")


def _clause(name: str) -> str:
    return f"the trainer's transport over NCCL: {name}"


def ask_contract(setting: Setting) -> None:
    """Ask the trainer's transport over NCCL for what it promises, clause by clause, as `make test` does where it can."""
    workers = WarmWorkers()
    try:
        for clause, expected in test_transport.EXPECTED.items():
            try:
                seen = test_transport.over_nccl(clause, workers)
            except (AssertionError, RuntimeError) as error:
                seen = str(error).strip()[-400:]
            setting.findings.judge(_clause(clause), seen == expected, json.dumps(seen))
    finally:
        workers.close()


def _ask_all(setting: Setting, lines: Sequence[Line]) -> None:
    """Run long acts at the same time, since they mostly sleep; the others one after the other."""
    asked: dict[tuple[str, bool, bool], list[Line]] = {}
    for line in lines:
        asked.setdefault((line.act, line.quiet, line.shares), []).append(line)
    sleeping = [group for group in asked.values() if group[0].act in ("survivor", "short_timeout")]
    with ThreadPoolExecutor(max(1, len(sleeping))) as beside:
        later = [(group, beside.submit(in_processes, setting, group[0])) for group in sleeping]
        for group in asked.values():
            if group not in sleeping:
                _add(setting, group, in_processes(setting, group[0]))
        for group, ended in later:
            _add(setting, group, ended.result())


def _add(setting: Setting, lines: Sequence[Line], ended: Ended) -> None:
    for line in lines:
        seen = "; ".join(f"member {place}: {_in_words(ended, place)}" for place in range(2))
        if line.holds is None:
            setting.findings.add(line.text, Verdict.MEASURED, seen, line.figures(ended))
            continue
        if line.act == "duplicate" and setting.gpus > 1:
            setting.findings.add(line.text, Verdict.UNSEEN, "each member has a GPU of its own here")
            continue
        verdict = Verdict.CONFIRMED if line.holds(ended) else Verdict.REFUTED
        setting.findings.add(line.text, verdict, "" if verdict is Verdict.CONFIRMED else seen, line.figures(ended))


def _in_words(ended: Ended, place: int) -> str:
    code = ended.codes[place]
    if ended.answers[place] is not None:
        return json.dumps(ended.answers[place])
    how = "did not end" if code is None else f"ended with {code}"
    return f"{how}, said {ended.said[-300:]!r}" if place == 0 else how


def in_processes(setting: Setting, line: Line, library: str = "nccl") -> Ended:
    """Run an act in two processes, which are killed at the line's limit."""
    store, port = open_store()
    folder = Path(tempfile.mkdtemp(dir=setting.folder))
    members = []
    for index in range(2):
        env = {**os.environ, **member_environment(index, 2, setting.gpus), **(nccl.ENVIRONMENT if line.quiet else {})}
        if not line.shares:
            env.pop("NCCL_HOSTID", None)
            env["NCCL_MULTI_RANK_GPU_ENABLE"] = "0"
        words = [sys.executable, "-m", "tests.gpu_check.nccl_seats", line.act, str(index), str(port), library]
        with (folder / f"{index}.txt").open("wb") as file:
            members.append(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + line.seconds
    while any(member.poll() is None for member in members) and time.monotonic() < deadline:
        time.sleep(0.1)
    codes = [member.poll() for member in members]
    for member in members:
        member.kill()
        member.wait()
    del store
    texts = [(folder / f"{index}.txt").read_text(encoding="utf-8", errors="replace") for index in range(2)]
    return Ended([_answer(text) for text in texts], codes, "\n".join(texts))


def _answer(text: str) -> Any:
    answers = [line.removeprefix(ANSWER) for line in text.splitlines() if line.startswith(ANSWER)]
    return json.loads(answers[-1]) if answers else None


def simulated(act: str) -> Ended:
    """Run an act in two threads over simulated NCCL."""
    network = Network(finds_deadlocks=False)
    network.expect(2)
    before, nccl.OWN_DEVICE = nccl.OWN_DEVICE, torch.device("cpu")

    def run(index: int) -> Any:
        with network.member(index, "GPU-0" if act == "duplicate" else "") as member:
            return getattr(nccl_acts, act)(ThreadSeat(network, index, member))

    try:
        return Ended(in_threads(run, 2))
    finally:
        nccl.OWN_DEVICE = before
        network.close()
