"""The check's harness without a GPU: limits, ends, interruptions, and a report that claims no more than was seen."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gpu_check.findings import Finding, Findings, Verdict, read_findings
from tests.gpu_check.harness import Outcome
from tests.gpu_check.machine import Machine
from tests.gpu_check.nccl_lines import LINES
from tests.gpu_check.report import Report
from tests.gpu_check.setting import member_environment
from tests.gpu_check.table import PARTS, REPORT_SECONDS, TOTAL_SECONDS, Part

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
"""Only a hang lasts this long."""
GPU = {"name": "H100", "uuid": "GPU-1", "multiprocessors": 132, "memory_bytes": 80 << 30, "driver": "580.1"}
RUN = """
import sys
from pathlib import Path
from tests.gpu_check.harness import Interrupted, Orders, run_parts
from tests.gpu_check.machine import Machine
from tests.gpu_check.report import Report
from tests.gpu_check.table import Part
folder = Path(sys.argv[1])
named = [word.split("=") for word in sys.argv[2:]]
parts = [Part(name, name, f"tests.gpu_check_parts:{name}", int(seconds)) for name, seconds in named]
report = Report(Machine(reason="none"), "cpu", False, parts)
keep = lambda outcome: (report.outcomes.append(outcome), report.write(folder))
try:
    run_parts(parts, Orders("cpu", False, folder / "parts", 0, ()), keep)
except Interrupted as interrupted:
    report.interrupted = str(interrupted)
    report.write(folder)
sys.exit(0 if report.good else 1)
"""


def start(folder: Path, *parts: str) -> "subprocess.Popen[bytes]":
    """The harness in a process of its own: it ends all that descends from it."""
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder), *parts], cwd=ROOT, stdout=subprocess.DEVNULL)


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def processes_of(folder: Path) -> list[int]:
    """Of the part that hangs: its own, its child's, and that of an orphan in another session."""
    file, deadline = folder / "parts" / "hangs" / "processes", time.monotonic() + SECONDS
    while not (file.exists() and len(file.read_text().split()) == 3):
        assert time.monotonic() < deadline, "the part has not begun"
        time.sleep(0.02)
    return [int(word) for word in file.read_text().split()]


def test_a_part_is_ended_at_its_limit_with_all_that_it_started_and_the_others_go_on(tmp_path: Path) -> None:
    assert start(tmp_path, "hangs=8", "crashes=60", "good=60").wait(SECONDS) == 1
    assert not [process for process in processes_of(tmp_path) if psutil.pid_exists(process)]
    report = report_of(tmp_path)
    ends = {part["part"]["name"]: part["ended"] for part in report["parts"]}
    assert ends == {"hangs": "killed at its limit", "crashes": "ended with 1", "good": "completed"}
    found = {(part["part"]["name"], one["line"]): one for part in report["parts"] for one in part["findings"]}
    assert {name: one["verdict"] for name, one in found.items()} == {
        ("hangs", "before"): "passed", ("hangs", "after"): "not seen", ("crashes", "first"): "passed",
        ("crashes", "second"): "not seen", ("good", "a promise"): "passed", ("good", "a figure"): "measured",
    }  # fmt: skip
    assert found["hangs", "after"]["detail"] == "the part was killed at its limit"
    assert "the library is not there" in report["parts"][1]["output"]
    text = (tmp_path / "report.md").read_text()
    assert "ValueError: the library is not there" in text and "- after (hangs): the part was killed at its limit" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_a_report_and_no_process(number: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path, "good=60", "hangs=600", "crashes=60")
    mine = processes_of(tmp_path)
    os.kill(process.pid, number)
    assert process.wait(SECONDS) == 1
    assert not [one for one in mine if psutil.pid_exists(one)]
    report = report_of(tmp_path)
    assert (report["interrupted"], report["good"], report["not_begun"]) == (number.name, False, ["crashes"])
    assert [part["ended"] for part in report["parts"]] == ["completed", "interrupted"]
    assert f"Interrupted by {number.name}" in (tmp_path / "report.md").read_text()


def test_what_does_not_hold_is_an_exit_status(tmp_path: Path) -> None:
    assert start(tmp_path, "broken_promise=60").wait(SECONDS) == 1
    assert "| a promise | FAILED | it was broken \\| here |" in (tmp_path / "report.md").read_text()
    assert start(tmp_path / "good", "good=60").wait(SECONDS) == 0
    text = (tmp_path / "good" / "report.md").read_text()
    assert "All parts came to their end." in text and "step ms 12.5" in text


def test_without_a_gpu_nothing_is_run_and_nothing_claimed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_check", "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True,
        timeout=SECONDS, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no GPU here" in done.stdout and "nothing was run and nothing is claimed" in done.stdout
    assert not (tmp_path / "out").exists()


def test_the_parts_fit_into_forty_minutes_and_are_there() -> None:
    assert sum(part.seconds for part in PARTS) + REPORT_SECONDS < TOTAL_SECONDS == 2400
    for part in PARTS:
        module, _, function = part.function.partition(":")
        assert f"\ndef {function}(setting: Setting) -> None:" in (ROOT / "tests" / "gpu_check" / f"{module}.py").read_text()


def test_a_line_that_was_half_written_is_left_out(tmp_path: Path) -> None:
    findings = Findings(tmp_path / "findings")
    findings.expect(["one", "two"])
    findings.judge("one", True)
    with (tmp_path / "findings").open("a") as file:
        file.write('{"finding": {"line": "tw')
    assert [(one.line, one.verdict) for one in read_findings(tmp_path / "findings", "killed")] == [
        ("one", Verdict.PASSED), ("two", Verdict.UNSEEN)]  # fmt: skip
    assert read_findings(tmp_path / "nothing", "killed") == []


def report_on(device: str, *gpus: dict[str, Any]) -> Report:
    part = Part("nccl", "NCCL", "nccl_lines:nccl_lines", 10)
    outcome = Outcome(part, "completed", 1.0, [Finding("wait() returns early", Verdict.CONFIRMED)])
    return Report(Machine(list(gpus), {"torch": "2.13.0", "nccl": "2.29.7"}), device, False, [part], [outcome])


def test_a_rehearsal_says_that_it_is_one_and_a_check_what_it_could_not_see() -> None:
    rehearsal = report_on("cpu").as_markdown()
    assert "**A rehearsal on a CPU.**" in rehearsal and "says nothing about any GPU" in rehearsal
    assert "- every GPU, CUDA and NCCL: this was a rehearsal on a CPU" in rehearsal
    one = report_on("cuda", GPU).as_markdown()
    assert "rehearsal" not in one and "H100, 132 SMs, 80 GiB, driver 580.1" in one and "nccl 2.29.7" in one
    assert "- NVLink, PCIe peers and GPUs of their own: one GPU: several ranks shared it" in one
    two = report_on("cuda", GPU, {**GPU, "uuid": "GPU-2"}).as_markdown()
    assert "NVLink, PCIe peers" not in two and "- several nodes:" in two
    assert report_on("cpu").as_json()["rehearsal"] is True and report_on("cuda", GPU).as_json()["good"] is True


def test_members_share_a_gpu_only_where_there_are_too_few() -> None:
    assert member_environment(1, 2, 2) == {"CUDA_VISIBLE_DEVICES": "1"}
    shared = [member_environment(index, 2, 1) for index in range(2)]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in shared} == {"0"}
    assert len({one["NCCL_HOSTID"] for one in shared}) == 2, "NCCL before 2.30 takes them for two hosts"


def test_each_line_of_nccl_says_another_thing() -> None:
    assert len({line.text for line in LINES}) == len(LINES) >= 15
    assert {line.act for line in LINES if not line.simulated} == {"survivor", "short_timeout", "beside", "first_message"}
