"""The four walks involve no more files than when their bounds were written; a shorter walk lowers its bound."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.walks.traced_run import traced_run
from tests.walks.walks import WALKS, Act, Walk, Walked, read_walks, write_acts


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


def test_an_act_that_does_not_happen_is_told(tmp_path: Path) -> None:
    walks = (Walk("one", 1, 1, 1, (Act("a.py:there"), Act("a.py:renamed"))),)
    write_acts(tmp_path, walks)
    (tmp_path / "1.jsonl").write_text('["a.py:there", "a.py", true]\n["a.py:there", "b.py", false]\n["a.py:the')
    (found,) = read_walks(tmp_path, walks)
    assert (found.passed, found.touched, found.absent) == ({"a.py"}, {"a.py", "b.py"}, ("a.py:renamed",))
    assert "touches 2 files (today's bound 1, goal 1), of which it passes 1 (bound 1)" in found.text()
