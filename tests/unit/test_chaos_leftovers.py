"""Whose a port is that still listens after a case: its own, or that of the case beside it, dealt it by the system."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.leftovers import leftovers

LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@contextmanager
def listener(*names: Path, log: Path | None = None) -> Iterator[int]:
    """The port of a process that listens, has these paths in its command line, and holds `log` open."""
    with (
        open(log or os.devnull, "w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", LISTENER, *map(str, names)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "seed-1" / "run"
    (tmp_path / "seed-1" / "t").mkdir(parents=True)
    run.mkdir()
    return run


def left(run: Path, port: int) -> list[str]:
    (run / "controller.address").write_text(f"127.0.0.1:{port}")
    return leftovers(run, run.parent / "t", run / "checkpoints")


def test_a_port_that_nobody_can_be_named_for_is_left_over(run: Path) -> None:
    with listener() as port:
        assert left(run, port) == [f"port {port} still listens"]


def test_a_port_that_the_case_beside_it_was_given_is_not(run: Path) -> None:
    with listener(run.parents[1] / "seed-10" / "run") as port:
        assert left(run, port) == []


def test_a_port_that_a_run_of_some_other_place_was_given_is_not(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A series may run beside other tests."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "run"
    (elsewhere / "logs").mkdir(parents=True)
    log = elsewhere / "logs" / "trainer-0.log"
    with listener(log=log) as port:
        assert left(run, port) == [f"port {port} still listens"], "a log of no run"
        (elsewhere / "job.yaml").write_text("")
        assert left(run, port) == []


def test_a_port_held_in_the_name_of_both_cases_is_left_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.leftovers.ENDING_SECONDS", 0.0)
    with listener(run.parents[1] / "seed-10" / "run", run) as port:
        problems = left(run, port)
    assert any(problem.startswith("process") for problem in problems)
    assert f"port {port} still listens" in problems


def test_half_a_note_of_a_planned_fault_is_the_tests_own_and_half_a_file_of_the_run_is_not(run: Path) -> None:
    (run / "cluster" / "faults").mkdir(parents=True)
    for folder in (run, run / "cluster" / "faults"):
        (folder / ".1.77072ab32ddd4ccea4d98edd5c7c8d90").write_text("{")
    assert leftovers(run, run.parent / "t", run / "checkpoints") == ["half-written .1.77072ab32ddd4ccea4d98edd5c7c8d90"]


def test_half_a_checkpoint_outside_the_run_directory_is_left_over(run: Path) -> None:
    root = run.parent / "checkpoints"
    root.mkdir()
    (root / "manifest.json.partial").write_text("{")
    assert leftovers(run, run.parent / "t", run / "../checkpoints") == ["half-written manifest.json.partial"]
