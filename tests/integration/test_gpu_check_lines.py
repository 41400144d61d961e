"""The GPU check's statements on NCCL, verified for the simulation of NCCL, and by the processes that the check would use."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu_check.findings import Findings, Verdict, read_findings
from tests.gpu_check.nccl_lines import LINES, Line, in_processes, simulated
from tests.gpu_check.prices import SLOW, WAYS, ask_ways
from tests.gpu_check.setting import Setting

ROOT = Path(__file__).parents[2]
SIMULATED = [line for line in LINES if line.simulated and line.holds is not None]


@pytest.mark.parametrize("act", list(dict.fromkeys(line.act for line in SIMULATED)))
def test_the_simulation_keeps_the_lines_that_real_nccl_is_asked(act: str) -> None:
    ended = simulated(act)
    lines = [line for line in SIMULATED if line.act == act]
    assert lines and {line.text: line.holds is not None and line.holds(ended) for line in lines} == {
        line.text: True for line in lines}, ended  # fmt: skip


def line_of(act: str, seconds: float = 60.0) -> Line:
    return Line(act, act, lambda ended: True, seconds=seconds)


def setting(folder: Path) -> Setting:
    return Setting("cpu", False, folder, Findings(folder / "findings"), 0, ())


def test_members_are_processes_that_answer(tmp_path: Path) -> None:
    """Over gloo in NCCL's place: sums and moved bits."""
    for act in ("two_sum", "moved"):
        ended = in_processes(setting(tmp_path), line_of(act), "gloo")
        assert ended.codes == [0, 0], ended.said
        assert ended.answers == [{"equal": True}] * 2


def test_a_member_that_dies_has_no_answer_and_one_that_hangs_is_killed_at_the_limit(tmp_path: Path) -> None:
    ended = in_processes(setting(tmp_path), line_of("silence"), "gloo")
    assert ended.codes[0] == -9 and ended.answers[0] is None
    hung = in_processes(setting(tmp_path), line_of("short_timeout", seconds=5.0), "gloo")
    assert hung.codes[0] is None and hung.answers == [None, None]


@pytest.mark.parametrize("kind", [kind for kind in WAYS if kind not in SLOW])
def test_numerics_are_priced(kind: str, tmp_path: Path) -> None:
    """What a CPU shows: that each way's job and plan belong together, and that its loss is the plain numerics'."""
    asked = replace(setting(tmp_path), quick=True)
    ask_ways(asked, kind, WAYS[kind])
    assert [finding.verdict for finding in read_findings(tmp_path / "findings", "")] == [Verdict.MEASURED]


def test_a_quick_rehearsal_writes_its_report(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.gpu_check", "--device", "cpu", "--quick", "--only", "nccl", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rehearsal"] and report["good"]
    assert {one["verdict"] for one in report["parts"][0]["findings"]} == {"confirmed"}
    assert "A rehearsal on a CPU" in (tmp_path / "report.md").read_text()
