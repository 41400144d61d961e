"""No child of ours imports what lies in the folder where it happens to start: a user's file may have a library's name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("controller", "trainer", "cache_server")


def own_modules(source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the leading words of each command in which our own interpreter runs a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
            words = [one.value for one in node.elts[1:] if isinstance(one, ast.Constant)]
            if "-m" in words:
                yield node.lineno, words[: words.index("-m")]


def test_every_module_that_a_service_starts_is_started_with_a_safe_path() -> None:
    found = [
        (f"{file.relative_to(ROOT)}:{line}", options)
        for service in SERVICES
        for file in sorted((ROOT / service).rglob("*.py"))
        for line, options in own_modules(file.read_text(encoding="utf-8"))
    ]
    assert len(found) >= 4, "where are they now?"
    assert [place for place, options in found if "-P" not in options] == []


def test_a_command_without_the_option_would_be_found() -> None:
    assert list(own_modules('words = [sys.executable, "-m", "here"]')) == [(1, [])]


@pytest.mark.parametrize("service", SERVICES)
def test_every_image_sets_a_safe_path(service: str) -> None:
    assert "PYTHONSAFEPATH=1" in (ROOT / service / "Dockerfile").read_text(encoding="utf-8")
