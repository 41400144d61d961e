"""The four walks pass no more files than their goals, and involve no more than when their bounds were written.

A shorter walk lowers its bounds.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.walks.traced_run import traced_run
from tests.walks.walks import ENTERED_MAX, WALKS, Act, Walk, Walked, read_walks, write_acts


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Walked]]:
    with traced_run(tmp_path_factory.mktemp("walks")) as (ended, recorded):
        assert ended.code == 0, ended.story()
        yield {one.walk.name: one for one in read_walks(recorded)}


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_a_walk_takes_no_more_files_than_its_bound(walk: Walk, walked: dict[str, Walked]) -> None:
    found = walked[walk.name]
    assert found.absent == (), "each act of the walk happens in the run"
    assert len(found.passed) <= walk.passed and len(found.touched) <= walk.touched, found.text()


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_a_walk_reaches_its_goal_and_enters_no_file_more_than_twice(walk: Walk, walked: dict[str, Walked]) -> None:
    found = walked[walk.name]
    assert len(found.passed) <= walk.goal, found.text()
    assert max(found.entered.values()) <= ENTERED_MAX, found.text()


def test_an_act_that_does_not_happen_is_told(tmp_path: Path) -> None:
    walks = (Walk("one", 1, 1, 1, (Act("a.py:there"), Act("a.py:renamed"))),)
    write_acts(tmp_path, walks)
    (tmp_path / "1.jsonl").write_text('["a.py:there", "a.py", true]\n["a.py:there", "b.py", false]\n["a.py:the')
    (found,) = read_walks(tmp_path, walks)
    assert (found.passed, found.touched, found.absent) == ({"a.py"}, {"a.py", "b.py"}, ("a.py:renamed",))
    assert "passes 1 files (goal 1, today's bound 1) and touches 2 (bound 1)" in found.text()


def test_a_file_is_entered_anew_where_the_act_before_did_not_pass_it() -> None:
    acts = [(Act(f"a.py:{name}"), frozenset(files.split()), frozenset[str]()) for name, files in
            (("one", "a.py b.py"), ("two", "a.py c.py"), ("three", "b.py"), ("four", "a.py b.py"), ("five", "c.py"))]  # fmt: skip
    found = Walked(Walk("one", 3, 3, 3, tuple(act for act, _, _ in acts)), tuple(acts), ())
    assert found.entered == {"a.py": 2, "b.py": 2, "c.py": 2}
