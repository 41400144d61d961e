"""Old against new: what the ratios of turns say, and a checkout that measures by this tree's text."""

import random
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.against.__main__ import is_slower
from tests.benchmarks.against.cases import CASES, Sample
from tests.benchmarks.against.judging import interval, judge
from tests.benchmarks.against.trees import HERE, ROOT, check_out


def test_the_interval_is_that_of_the_binomial_table() -> None:
    # Confidence intervals of a median at 95 %, as tables print them (from 1): 6: 1 to 6, 10: 2 to 9, 20: 6 to 15, 40: 14 to 27.
    assert [interval(count) for count in (6, 10, 20, 40)] == [(0, 5), (1, 8), (5, 14), (13, 26)]
    assert [interval(count) for count in (1, 3, 5)] == [(0, 0), (0, 2), (0, 4)]


def test_the_interval_misses_the_median_in_at_most_five_of_a_hundred() -> None:
    source, missed = random.Random(1), 0
    for _ in range(2000):
        low, high = interval(15)
        values = sorted(source.random() for _ in range(15))
        missed += not values[low] <= 0.5 <= values[high]
    # 2000 draws scatter by 0.5 per cent; the bound is six times that above what the table gives for 15 values (3.5 per cent).
    assert missed / 2000 < 0.065


@pytest.mark.parametrize(("factor", "word"), [(1.0, "no difference seen"), (1.01, "no difference seen"), (1.3, "SLOWER"),
                                              (0.7, "faster")])  # fmt: skip
def test_a_disturbance_of_both_turns_of_a_pair_says_nothing(factor: float, word: str) -> None:
    source = random.Random(2)
    load = [1 + 5 * source.random() for _ in range(20)]
    old = [one * source.uniform(0.99, 1.01) for one in load]
    assert judge([one * factor for one in load], old).word == word


def test_the_clock_that_is_asked_for_judges(capsys: pytest.CaptureFixture[str]) -> None:
    new, old = [Sample(2.0, 1.0, {"vote": 0.5})] * 6, [Sample(1.0, 1.0, {"vote": 0.1})] * 6
    assert is_slower("step", new, old, by_processor=False)
    assert not is_slower("step", new, old, by_processor=True)
    assert not is_slower("recovery", [Sample(1.0)] * 6, [Sample(1.0)] * 6, by_processor=True)
    printed = capsys.readouterr().out
    assert "new / old 2.000 (2.000 to 2.000, 6 pairs)" in printed and "vote 500 / 100 ms" in printed


def test_a_checkout_has_the_revisions_files_and_this_trees_cases(tmp_path: Path) -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("this tree is no git checkout")
    tree = check_out("HEAD", tmp_path)
    assert (tree / "Makefile").exists() and not (tree / ".venv").exists()
    assert (tree / HERE.relative_to(ROOT) / "cases.py").read_text() == (HERE / "cases.py").read_text()
    with pytest.raises(SystemExit, match="REV=no-such-commit"):
        check_out("no-such-commit", tmp_path / "other")


def test_every_case_has_enough_pairs_for_an_interval() -> None:
    assert all(entry.pairs >= 6 for entry in CASES.values())
