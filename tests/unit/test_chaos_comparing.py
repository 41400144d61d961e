"""The comparison of chaos runs: which decisions of two runs are the same."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.comparing import DECIDED, decided


def line(number: int, kind: str = "keep", lineage: int = 0, rollback_to: int = -1, void: bool = False) -> dict[str, Any]:
    values = (number, number, 8 * number + 3, 0, kind, rollback_to, void)
    return {**dict(zip(DECIDED, values, strict=True)), "lineage": lineage}


def run(*lines: dict[str, Any]) -> Any:
    return SimpleNamespace(decisions=lines)


BACK = line(4, "rollback", 1, 10)


def test_a_decision_made_again_after_a_restore_counts_once() -> None:
    assert decided(run(line(2), line(2, lineage=1))) == decided(run(line(2)))


def test_a_rollback_that_a_restore_undid_counts_once_where_it_is_decided_again() -> None:
    undone = line(4, "rollback", 1, 10, void=True)
    assert decided(run(BACK, undone, line(4, "rollback", 3, 10))) == decided(run(BACK))


@pytest.mark.parametrize(
    "other", [line(4, "rollback", 1, 10, void=True), line(4, "rollback", 1, 9), line(4, "freeze"), line(4, void=True)], ids=str
)
def test_another_decision_is_told(other: dict[str, Any]) -> None:
    assert decided(run(other)) != decided(run(BACK))
    assert decided(run(line(4), line(4, void=True))) != decided(run(line(4))), "a void decision that is no rollback counts"
