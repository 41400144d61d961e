"""The documents are true of this repository: what they name exists, and nothing refers to what lies outside it."""

import ast
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.model.rules import RULES

ROOT = Path(__file__).parents[2]
SKIPPED = {"runs", "build", "_build", "dist", "__pycache__"}
"""Folders of what tools and runs leave; those whose names begin with a dot are passed over too."""
SUFFIXES = (".py", ".pyi", ".md", ".proto", ".yaml", ".json", ".tpl", ".toml", ".sh")


def texts_below(folder: Path) -> list[str]:
    """The repository's own text files, as paths relative to its root."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in SKIPPED or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            found += texts_below(path)
        elif path.name.endswith(SUFFIXES):
            found.append(path.relative_to(ROOT).as_posix())
    return found


TEXTS = texts_below(ROOT)
PAGES = [name for name in TEXTS if name.endswith(".md")]
SPECIFICATION, GLOSSARY = "docs/protocols.md", "docs/glossary.md"

LINK = re.compile(r"\]\(([^()\s]+)\)")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")
SHORT_TEST_NAME = re.compile(r"`(test_\w+)?(?:::(test_\w+))?`")
REFERENCE = re.compile(r"docs/(protocols|design)\.md,? (\d+(?:\.\d+)?(?:(?:,| and| to) \d+(?:\.\d+)?)*)")
OUTSIDE = re.compile(r"\bPROTOCOLS(?:\.md)? ?\d|\bDESIGN(?:\.md)? ?\d|\bfacts/\w+\.md|\bhouse rule \d|\(\.\./shared/")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose_of(name: str) -> str:
    """A page without its blocks of code, in which brackets and hashes mean something else."""
    return re.sub(r"^```.*?^```", "", text_of(name), flags=re.MULTILINE | re.DOTALL)


@cache
def functions_of(name: str) -> frozenset[str]:
    tree = ast.parse(text_of(name))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def anchors_of(name: str) -> frozenset[str]:
    """As GitHub makes them: lower case, words joined by hyphens, everything else left out, repeated ones numbered."""
    anchors: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose_of(name), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeated = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", one) is not None for one in anchors)
        anchors.append(f"{anchor}-{repeated}" if repeated else anchor)
    anchors += re.findall(r'<a (?:id|name)="([^"]+)"', text_of(name))
    return frozenset(anchors)


def broken_links(name: str) -> list[str]:
    broken = []
    for target in LINK.findall(prose_of(name)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = ((ROOT / name).parent / path if path else ROOT / name).resolve()
        there = file.is_relative_to(ROOT) and file.exists()
        if there and anchor and file.suffix == ".md":
            there = anchor in anchors_of(file.relative_to(ROOT).as_posix())
        if not there:
            broken.append(target)
    return broken


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_leads_to_a_file_and_heading_of_the_repository(name: str) -> None:
    assert broken_links(name) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_test_that_a_page_names_exists(name: str) -> None:
    file, missing = "", []
    for path, function in TEST_NAME.findall(prose_of(name)):
        file = path or file
        if not file or not (path or function):
            continue
        if not (ROOT / file).is_file() or (function and function not in functions_of(file)):
            missing.append(f"{file}::{function}")
    assert missing == []


def test_every_test_of_the_failure_model_exists() -> None:
    """Its table names a test by file name and function, or by its file alone."""
    functions: dict[str, frozenset[str]] = {}
    for name in TEXTS:
        if re.fullmatch(r"tests/.*test_\w+\.py", name):
            functions[Path(name).stem] = functions.get(Path(name).stem, frozenset()) | functions_of(name)
    stem, named, missing = "", 0, []
    for row in re.findall(r"^\|.*\|$", text_of("docs/adr/0007-failure-model.md"), flags=re.MULTILINE):
        for file, function in SHORT_TEST_NAME.findall(row):
            stem = file or stem
            named += bool(file or function)
            if (file or function) and (stem not in functions or (function and function not in functions[stem])):
                missing.append(f"{stem}::{function}")
    assert missing == []
    assert named > 30


GPU_FINDINGS = {"A": 5, "B": 6, "C": 8, "D": 6, "E": 14, "F": 6, "G": 5, "H": 1, "T": 8}
"""How many findings ADR 14 has, by letter; H has no number."""
GPU_PAGES = (
    "docs/adr/0013-time-and-speed-on-a-device.md",
    "docs/adr/0014-what-gpus-ask.md",
    "docs/adr/0015-precision-and-memory.md",
)
NOT_TESTED = {"G2": "a page"}
"""Findings without a test, and what their row says of it."""


def findings_in(text: str) -> set[str]:
    """The findings that a table's cell names: A1, or E3 to E14."""
    found = set()
    for letter, low, high in re.findall(r"\b([A-HT])(\d+)?(?: to \1(\d+))?\b", text):
        numbers = range(int(low), int(high or low) + 1) if low else ()
        found |= {f"{letter}{number}" for number in numbers} or ({letter} & {"H"})
    return found


def answers_to_findings() -> dict[str, list[str]]:
    """The rows about each finding: those whose first cells name it."""
    rows: dict[str, list[str]] = {}
    for page in GPU_PAGES:
        for line in re.findall(r"^\|.*\|$", text_of(page), flags=re.MULTILINE):
            for finding in findings_in(line.split("|")[1]):
                rows.setdefault(finding, []).append(line)
    return rows


def test_every_finding_about_gpus_is_held_by_a_test_or_says_why_not() -> None:
    expected = {f"{letter}{number}" for letter, count in GPU_FINDINGS.items() if letter != "H" for number in range(1, count + 1)}
    rows = answers_to_findings()
    assert rows.keys() == expected | {"H"}
    for finding, lines in rows.items():
        tested = any("`tests/" in line for line in lines) or all("check: `recovery`" in line for line in lines)
        assert tested or NOT_TESTED[finding] in " ".join(lines), finding
    assert not any("not done" in line for lines in rows.values() for line in lines)


def promises_of(name: str) -> dict[str, str]:
    """The text of each numbered promise; a section without numbers of its own is one."""
    promises = {}
    for section, body in re.findall(r"^## (\d+)\. .+\n((?:(?!^## ).*\n)*)", text_of(name), flags=re.MULTILINE):
        parts = re.split(rf"^\*\*({section}\.\d+) ", body, flags=re.MULTILINE)
        promises |= dict(zip(parts[1::2], parts[2::2], strict=True)) if len(parts) > 1 else {section: body}
    return promises


def test_every_promise_names_the_tests_that_show_it() -> None:
    promises = promises_of(SPECIFICATION)
    assert len(promises) > 70
    assert [number for number, text in promises.items() if not re.search(r"^- Tests:\s+`tests/", text, re.MULTILINE)] == []


def test_promises_are_numbered_in_order() -> None:
    numbers = [tuple(map(int, number.split("."))) for number in promises_of(SPECIFICATION)]
    assert numbers == sorted(set(numbers))
    written = re.findall(r"^\*\*(\d+\.\d+) ", text_of(SPECIFICATION), flags=re.MULTILINE)
    assert sorted(written) == sorted(set(written)), "two promises have one number"
    for before, after in zip(numbers, numbers[1:], strict=False):
        skipped = after[0] - before[0] > 1 or (after[0] == before[0] and after[1] - before[1] > 1)
        assert not skipped, f"{before} is followed by {after}"


def test_every_rule_of_the_model_closes_a_promise() -> None:
    lines = re.findall(r"^- Model: ((?:.|\n  )*)", text_of(SPECIFICATION), flags=re.MULTILINE)
    named = {rule for line in lines for rule in re.findall(r"`([\w-]+)`", line)}
    assert named == set(RULES)


def test_every_number_that_code_refers_to_exists() -> None:
    numbered = re.compile(r"^(?:## |\*\*|- \*\*)(\d+(?:\.\d+)?)\.?(?:\*\*)? ", re.MULTILINE)
    known = {page: set(numbered.findall(text_of(f"docs/{page}.md"))) for page in ("protocols", "design")}
    referred = [
        (name, page, number)
        for name in TEXTS
        for page, numbers in REFERENCE.findall(text_of(name))
        for number in re.findall(r"\d+(?:\.\d+)?", numbers)
    ]
    assert [one for one in referred if one[2] not in known[one[1]]] == []
    assert len(referred) > 100


def test_nothing_refers_to_documents_outside_the_repository() -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()
    found = [f"{name}: {match.group()}" for name in TEXTS if name != here for match in OUTSIDE.finditer(text_of(name))]
    assert found == []


def test_the_glossary_has_each_word_once() -> None:
    words = [
        word.strip().lower()
        for cell in re.findall(r"^\| \*\*(.+?)\*\* ", text_of(GLOSSARY), flags=re.MULTILINE)
        for word in cell.split(",")
    ]
    assert len(words) > 40
    assert sorted(words) == sorted(set(words))


def test_what_the_glossary_says_of_the_code_is_there() -> None:
    missing = []
    for path in re.findall(r"`((?:proto|trainer|controller|cache_server|tests)/[\w/.]+?)(?:::\w+)?`", text_of(GLOSSARY)):
        if not (ROOT / path).exists():
            missing.append(path)
    assert missing == []


def test_a_broken_link_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text("# A `heading`, with marks\n")
    page = "[a](there.md) [b](there.md#a-heading-with-marks) [c](https://x.y) [d](gone.md) [e](there.md#gone) [f](../../out.md)\n"
    (tmp_path / "docs" / "page.md").write_text(page + "```\n[g](in-code.md)\n```\n")
    assert broken_links("docs/page.md") == ["gone.md", "there.md#gone", "../../out.md"]
