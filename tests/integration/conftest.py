"""What integration tests share: warm worker processes, and the table of what exactness was tested on."""

from collections.abc import Iterator
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
def combination(request: pytest.FixtureRequest) -> Any:
    """Call it with a combination's words and verdict: they go into the table that ends the run."""

    def note(words: str, verdict: str) -> None:
        request.config.stash.setdefault(TABLE, []).append((words, verdict))

    return note


TABLE = pytest.StashKey[list[tuple[str, str]]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the combinations tested and refused."""
    rows = config.stash.get(TABLE, [])
    if not rows:
        return
    terminalreporter.section("placements: combinations tested and refused")
    width = max(len(words) for words, _ in rows)
    for words, verdict in rows:
        terminalreporter.write_line(f"{words:<{width}}  {verdict}")
