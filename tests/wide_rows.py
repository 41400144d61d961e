"""Tables of which `make test` runs a part, and `make test-wide` the rest."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def wide_rows(names: Iterable[Any], wide: Collection[Any]) -> list[Any]:
    """Return rows for `pytest.mark.parametrize`, one a name; those in `wide` have the mark `wide`."""
    return [pytest.param(name, marks=pytest.mark.wide) if name in wide else name for name in names]


def all_wide(*rows: tuple[Any, ...]) -> list[Any]:
    """Return rows for `pytest.mark.parametrize` that all have the mark `wide`."""
    return [pytest.param(*row, marks=pytest.mark.wide) for row in rows]
