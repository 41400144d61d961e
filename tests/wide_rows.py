"""Tables of which `make test` runs a part, and `make test-wide` the rest."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

WITHOUT_WIDE = "not wide"
"""The choice of tests by `make test`, as of pytest's -m."""
chosen = ""
"""Today's choice; `tests/conftest.py` sets it before any test file is imported."""


def wide_rows(names: Iterable[Any], wide: Collection[Any]) -> list[Any]:
    """Return rows for `pytest.mark.parametrize`, one a name; those in `wide` have the mark `wide`."""
    return [pytest.param(name, marks=pytest.mark.wide) if name in wide else name for name in names]


def all_wide(*rows: tuple[Any, ...]) -> list[Any]:
    """Return rows for `pytest.mark.parametrize` that all have the mark `wide`."""
    return [pytest.param(*row, marks=pytest.mark.wide) for row in rows]


def whole_table(rows: Callable[[], list[Any]]) -> list[Any]:
    """Return the rows of a table of thousands, for a test that has the mark `wide`; none where such tests are left out anyway.

    pytest takes milliseconds to make a test of a row, in each of its processes.
    """
    return [] if chosen == WITHOUT_WIDE else rows()
