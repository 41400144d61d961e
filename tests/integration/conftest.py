"""Fixtures of the integration tests: warm worker processes, and the table of the combinations tested for exactness."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.warm_workers import WarmWorkers


@pytest.fixture(scope="session")
def warm_workers() -> "Iterator[WarmWorkers]":
    """The session's pool; its processes start when a test first needs them and end with the session."""
    from tests.warm_workers import WarmWorkers

    pool = WarmWorkers()
    yield pool
    pool.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="frostline-") as folder:
        yield Path(folder)


@pytest.fixture
def combination(request: pytest.FixtureRequest) -> Any:
    """A function that adds a combination's words and verdict to the table at the end of the test run."""

    def note(words: str, verdict: str) -> None:
        # A property of the report, which arrives from whichever process has run the test.
        request.node.user_properties.append((ROW, (words, verdict)))

    return note


ROW = "combination"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the combinations tested and refused."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    rows = [value for report in reports if report.when == "call" for name, value in report.user_properties if name == ROW]
    if not rows:
        return
    terminalreporter.section("placements: combinations tested and refused")
    width = max(len(words) for words, _ in rows)
    for words, verdict in rows:
        terminalreporter.write_line(f"{words:<{width}}  {verdict}")
