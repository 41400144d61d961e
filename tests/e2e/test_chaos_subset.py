"""A few fixed chaos cases: the oracle bounds the cost of a run's faults, and the bits are those of one undisturbed worker."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fixed import SUBSET, fixed_cases
from tests.chaos.report import case_line
from tests.chaos.running import Laboratory

CASES = {case.name: case for case in fixed_cases()}


@pytest.fixture(scope="module")
def made(preload: str) -> Iterator[Laboratory]:
    """Run cases in a folder with a short name, since sockets lie below it. Files of a failed case are kept."""
    root = Path(tempfile.mkdtemp(prefix="fc-"))
    yield Laboratory(root, preload)
    for folder in root.glob("reference-*"):
        shutil.rmtree(folder)
    (root / "corpus.txt").unlink()
    if not any(root.iterdir()):
        root.rmdir()


@pytest.mark.parametrize("name", SUBSET)
def test_faults_cost_what_the_oracle_says_and_change_no_bit(name: str, made: Laboratory) -> None:
    outcome = made.run(CASES[name])
    assert outcome.problems == (), f"{case_line(outcome)}\n{outcome.folder}"
    assert bool(outcome.verdict.backs) == (outcome.case.aim == "lost")
    assert bool(outcome.late) == (outcome.case.aim == "late")
    made.forget(outcome)
