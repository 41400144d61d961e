"""The benchmarks' writer: pages follow from the figures alone; and how figures are taken."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.__main__ import BENCHMARKS, DOCS, keep
from tests.benchmarks.goodput import kill_of
from tests.benchmarks.measuring import Report, Row, Spread, interleave, ratios, rounded
from tests.benchmarks.picture import picture
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import new_context
from tests.benchmarks.worlds import Commit
from tests.benchmarks.writing import goal, number, verdict, write_pages


def entry(*rows: Row, quick: bool = False) -> dict[str, Any]:
    return {
        "command": "make bench ARGS='--only step_time'", "date": "2025-01-02", "quick": quick, "seconds": 12.5,
        "taken": {"device": "a machine", "python": "3.11", "versions": {"torch": "2.13"}, "load": 0.1},
        "report": Report("A <title>", "What is compared.", list(rows)).as_json(),
    }  # fmt: skip


MET = Row("digits", "ours / plain", "x", Spread(0.9, 1.0, 1.1, 5), {"ours ms": 1234.5}, at_most=1.05)
MISSED = Row("bert", "ours / plain", "x", Spread(1.0, 1.25, 30.0, 5), at_most=1.05, note="it is slow in the exchange")
FASTER = Row("wire", "theirs / ours", "x", Spread(1.0, 1.6, 1.7, 5), at_least=1.5)
PLAIN = Row("any", "seconds", "s", Spread(0.1, 0.1, 0.1, 1))


def test_pages_are_a_function_of_the_figures(tmp_path: Path) -> None:
    document = keep(tmp_path / "benchmarks.json", "step_time", entry(MET, MISSED))
    first = {path.name: path.read_bytes() for path in write_pages(document, tmp_path / "a")}
    again = {
        path.name: path.read_bytes()
        for path in write_pages(json.loads((tmp_path / "benchmarks.json").read_text()), tmp_path / "b")
    }
    assert first == again
    assert set(first) == {"benchmarks.md", "step_time.svg"}


def test_page_says_what_is_missed_and_why(tmp_path: Path) -> None:
    page = write_pages(keep(tmp_path / "benchmarks.json", "step_time", entry(MET, MISSED, PLAIN)), tmp_path)[0].read_text()
    assert "1 of 2 goals are met." in page
    assert "| bert | ours / plain | 1.25 x | 1 to 30 (5) | ≤ 1.05 x: missed |" in page
    assert "| digits | ours / plain | 1 x | 0.9 to 1.1 (5) | ≤ 1.05 x: met | ours ms 1,234 |" in page
    assert "| any | seconds | 0.1 s | one reading |" in page
    assert "- bert: it is slow in the exchange." in page
    assert "2025-01-02" in page and "torch 2.13" in page and "--only step_time" in page


def test_a_smoke_test_is_called_one(tmp_path: Path) -> None:
    document = keep(tmp_path / "benchmarks.json", "step_time", entry(MET, quick=True))
    assert "these figures mean nothing" in write_pages(document, tmp_path)[0].read_text()


def test_keep_replaces_one_entry_and_holds_the_page_order(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.json"
    keep(path, "plan_speed", entry(PLAIN))
    keep(path, "step_time", entry(MET))
    document = keep(path, "plan_speed", entry(FASTER))
    assert list(document["benchmarks"]) == ["step_time", "plan_speed"]
    assert document["benchmarks"]["plan_speed"]["report"]["rows"][0]["case"] == "wire"
    assert json.loads(path.read_text()) == document


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="version 7"):
        write_pages({"version": 7, "benchmarks": {}}, tmp_path)


@pytest.mark.parametrize(("row", "words", "judged"), [(MET, "≤ 1.05 x", "met"), (MISSED, "≤ 1.05 x", "missed"),
                                                      (FASTER, "≥ 1.5 x", "met"), (PLAIN, "", "")])  # fmt: skip
def test_goals_are_judged_by_the_median(row: Row, words: str, judged: str) -> None:
    fields = Report("", "", [row]).as_json()["rows"][0]
    assert (goal(fields), verdict(fields)) == (words, judged)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234.5, "1,234"), (0.00012, "0.00012"), (1.0499, "1.05"), (-3.21, "-3.21")]
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_picture_is_well_formed_and_scales_ratios() -> None:
    rows = Report("", "", [MET, MISSED]).as_json()["rows"]
    drawn = picture("A <title>", rows)
    assert drawn is not None and picture("none", []) is None
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    middles = [float(circle.get("cx", "0")) for circle in root.iter(f"{space}circle")]
    assert len(middles) == 2 and middles[0] < middles[1]
    assert sum(line.get("class") == "goal" for line in root.iter(f"{space}line")) == 2


def test_interleaving_takes_turns_and_drops_the_warm_up() -> None:
    order: list[str] = []
    seconds = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, pairs=3)
    assert "".join(order) == "abbaabba"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}
    assert ratios([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]
    assert Spread.of([3.0, 1.0, 2.0, 9.0]) == Spread(1.0, 2.5, 9.0, 4)
    assert rounded({"a": (1.23456789, [2])}) == {"a": [1.2346, [2]]}


def test_committed_page_follows_from_the_committed_figures(tmp_path: Path) -> None:
    figures = DOCS / "benchmarks.json"
    if not figures.exists():
        pytest.skip("docs/benchmarks.json is not there yet: `make bench` writes it")
    document = json.loads(figures.read_text())
    assert set(document["benchmarks"]) <= set(BENCHMARKS)
    for fresh in write_pages(document, tmp_path):
        committed = DOCS / fresh.relative_to(tmp_path)
        assert committed.read_text() == fresh.read_text(), f"{committed.name} is not what benchmarks.json gives"


def commits_at(rate: float, until: float, step: int = 0, start: float = 0.0) -> list[Commit]:
    """Steps of a constant rate from `start` to `until`, after `step`."""
    return [Commit(step + one, start + one / rate, 4, "w") for one in range(1, int(rate * (until - start)) + 1)]


def test_what_a_kill_costs_is_the_standstill_however_the_machine_drifts() -> None:
    before, after = commits_at(10.0, 60.0), commits_at(10.0, 120.0, 600, 66.0)  # six of sixty seconds
    kill = kill_of([*before, *after], 60.0, 60.0)
    assert (kill.share, kill.rate, kill.pace) == pytest.approx((90.0, 10.0, 1.0), rel=0.01)
    slower = commits_at(5.0, 120.0, 600, 60.0)  # lastingly: no standstill, and the last row says so
    assert kill_of([*before, *slower], 60.0, 60.0).pace == pytest.approx(0.5, rel=0.01)


def test_steps_that_a_checkpoint_takes_back_count_once() -> None:
    before, after = commits_at(10.0, 60.0), commits_at(10.0, 120.0, 550, 60.0)  # at once, but fifty steps back
    assert kill_of([*before, *after], 60.0, 60.0).share == pytest.approx(100 * 550 / 600, rel=0.01)


def test_the_engine_that_is_measured_takes_steps() -> None:
    context = new_context("digits")
    before = [parameter.detach().clone() for unit in context.cut.units for parameter in unit.parameters()]
    Stepper(context).step()
    after = [parameter for unit in context.cut.units for parameter in unit.parameters()]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
