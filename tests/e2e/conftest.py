"""Fixtures of the end-to-end tests: one warm preload process for all runs, and the runs that several tests inspect."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.e2e.runs import Ended, Workshop, slowed, warm_preload

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
"""Reshapes by command, by number of workers: between the freezes (in force from steps 11 and 27 on) and after them."""


@pytest.fixture(scope="session")
def preload() -> Iterator[str]:
    """The socket of a preload process: torch and transformers are imported once for all runs of the session."""
    with warm_preload() as socket:
        yield socket


@pytest.fixture(scope="session")
def workshop(preload: str) -> Iterator[Workshop]:
    """The starter of runs; processes that a failed test leaves are ended with the session."""
    made = Workshop(preload)
    yield made
    made.close()


@pytest.fixture(scope="session")
def run_on(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Ended]:
    """The tiny digits job on a number of workers, reshaped by command in between: run once, inspected by several tests."""

    @cache
    def ended(workers: int) -> Ended:
        folder, reshapes = tmp_path_factory.mktemp(f"on{workers}") / "run", RESHAPES[workers]
        # Slow steps, so that a plan can be prepared before its window is over: that of the first one has seven steps.
        pauses = {18: 0.4, 37: 0.1}
        slow = [fault for one in reshapes for fault in slowed(one["step"], pauses[one["step"]], workers)]
        return workshop.run(folder, {"reshapes": reshapes, "faults": slow}, "--workers", str(workers), report=True)

    return ended


@pytest.fixture(scope="session")
def one_worker(run_on: Callable[[int], Ended]) -> Ended:
    """The undisturbed run on one worker, with which every other run of the job is compared."""
    ended = run_on(1)
    assert ended.code == 0, ended.story()
    return ended
