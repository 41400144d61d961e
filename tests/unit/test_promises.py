"""Every test that the failure model names exists: a promise whose test was renamed or removed is shown by nothing."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?P<file>(?:test_\w+)?)(?:::(?P<test>test_\w+))?`")


def test_each_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs/adr/0007-failure-model.md").read_text(encoding="utf-8")
    table = text.split("## Each promise")[1].split("\n## ")[0]
    rows = [line.strip(" |").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    sources: dict[str, str] = {}
    for file in (ROOT / "tests").rglob("test_*.py"):
        sources[file.stem] = sources.get(file.stem, "") + file.read_text(encoding="utf-8")
    for promise, _, shown_by in rows:
        named = list(NAMED.finditer(shown_by))
        assert named or "make chaos" in shown_by, f"{promise}: shown by {shown_by}"
        before = ""
        for one in named:
            before = one["file"] or before  # `::test_b` is of the file named before
            assert before in sources, f"{promise}: no file {before}.py"
            assert one["test"] is None or f"def {one['test']}(" in sources[before], f"{promise}: {before} has no {one['test']}"
