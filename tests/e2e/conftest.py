"""What end-to-end tests share: one warm preload process for all runs, and the runs that several tests look at."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.runs import Ended, Workshop

WARM_SECONDS = 120.0

RESHAPES = {
    1: [],
    2: [{"step": 18, "pp_degree": 1, "dp_degree": 2}, {"step": 37, "pp_degree": 2, "dp_degree": 1}],
    3: [{"step": 18, "pp_degree": 3, "dp_degree": 1}, {"step": 37, "pp_degree": 1, "dp_degree": 3}],
    4: [
        {"step": 18, "pp_degree": 2, "dp_degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
        {"step": 37, "pp_degree": 1, "dp_degree": 4, "schedule": "gpipe"},
    ],
    6: [{"step": 18, "pp_degree": 2, "dp_degree": 3, "schedule": "gpipe"}, {"step": 37, "pp_degree": 3, "dp_degree": 2}],
}
"""By number of workers: what is reshaped by command, between the freezes (in force from steps 11 and 27 on) and after them."""


@pytest.fixture(scope="session")
def preload() -> Iterator[str]:
    """The socket of a preload process: torch and transformers are imported once for all runs of the session."""
    with tempfile.TemporaryDirectory(prefix="frostline-e2e-") as folder:
        socket = Path(folder) / "preload.sock"
        process = subprocess.Popen([sys.executable, "-m", "frostline_trainer.preload", str(socket)])
        deadline = time.monotonic() + WARM_SECONDS
        while not socket.exists():
            assert process.poll() is None, "the preload process ended"
            assert time.monotonic() < deadline, f"the preload process was not ready within {WARM_SECONDS:g} s"
            time.sleep(0.05)
        yield str(socket)
        process.terminate()
        assert process.wait(10) == 0


@pytest.fixture(scope="session")
def workshop(preload: str) -> Iterator[Workshop]:
    """Starts runs; what a failed test leaves is ended with the session."""
    made = Workshop(preload)
    yield made
    made.close()


@pytest.fixture(scope="session")
def run_on(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Ended]:
    """The tiny digits job on so many workers, reshaped by command in between: run once, looked at by several tests."""

    @cache
    def ended(workers: int) -> Ended:
        folder = tmp_path_factory.mktemp(f"on{workers}") / "run"
        return workshop.run(folder, {"reshapes": RESHAPES[workers]}, "--workers", str(workers), report=True)

    return ended


@pytest.fixture(scope="session")
def one_worker(run_on: Callable[[int], Ended]) -> Ended:
    """The run on one worker that nothing befell: what every other run of the job is compared with."""
    ended = run_on(1)
    assert ended.code == 0, ended.story()
    return ended
