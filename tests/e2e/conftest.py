"""What end-to-end tests share: one warm preload process for all runs, and the runs that several tests look at."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runs import Ended, Workshop

WARM_SECONDS = 120.0


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
def one_worker(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The tiny digits job on one worker that nothing befell: what every other run of it is compared with."""
    ended = workshop.run(tmp_path_factory.mktemp("one") / "run")
    assert ended.code == 0, ended.story()
    return ended
