"""The mutant framework on a small tree of its own: it tells a caught bug from a missed one and from a broken table."""

from pathlib import Path

import pytest

from tests.mutants.judge import Verdict, judge
from tests.mutants.plant import Edit, Mutant, PlantError, check_imports, copy_sources, planted, run_tests
from tests.mutants.table import MUTANTS

REPOSITORY = Path(__file__).parents[2]
MODULE = '"""Doc."""\n\n\ndef twice(x):\n    return x + x\n\n\ndef unused(x):\n    return x\n'
TESTS = "from frostline_contract.small import twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the small tests need none, and loading them takes a second
    repository = tmp_path / "repository"
    package = repository / "proto" / "frostline_contract"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text(MODULE)
    (repository / "tests").mkdir()
    (repository / "tests" / "test_small.py").write_text(TESTS)
    (repository / "tests" / "test_red.py").write_text("def test_red():\n    assert 1 == 2\n")
    (repository / "tests" / "__pycache__").mkdir()
    (repository / ".venv").mkdir()
    return copy_sources(repository, tmp_path / "copy")


def mutant(old: str, new: str, tests: str = "tests/test_small.py", file: str = "proto/frostline_contract/small.py") -> Mutant:
    return Mutant("m", "a bug", (Edit(file, old, new),), (tests,))


def verdict_on(copy: Path, planted_mutant: Mutant) -> Verdict:
    said: list[str] = []
    (verdict,) = judge(copy, [planted_mutant], said.append)
    assert said[0].startswith("caught" if verdict.caught else "MISSED")
    return verdict


def test_a_bug_that_tests_notice_is_caught_and_taken_out_again(copy: Path) -> None:
    verdict = verdict_on(copy, mutant("x + x", "x + x + 1"))
    assert verdict.caught, verdict.detail
    assert "test_twice" in verdict.detail
    assert (copy / "proto/frostline_contract/small.py").read_text() == MODULE


def test_a_bug_that_no_test_notices_is_missed(copy: Path) -> None:
    verdict = verdict_on(copy, mutant("return x\n", "return x + 1\n"))
    assert not verdict.caught
    assert "1 passed" in verdict.detail


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (mutant("no such text", "y"), "holds the text 0 times"),
        (mutant("return x", "y"), "holds the text 2 times"),
        (mutant("x + x", "x + x"), "holds the text 1 times"),
        (mutant("x + x", "y", file="proto/gone.py"), "proto/gone.py does not exist"),
        (Mutant("m", "a bug", (), ("tests/test_small.py",)), "no edits in the table"),
        (mutant("x + x", "x +", tests="tests/test_red.py"), "do not pass without the bug"),
        (mutant("x + x", "x +"), "pytest ended with status 2, so no test judged the bug"),
        (mutant("x + x", "x - x", tests="tests/test_gone.py"), "do not pass without the bug"),
    ],
    ids=["absent", "twice", "no change", "no file", "no edits", "red before", "does not compile", "no tests"],
)
def test_a_broken_table_is_no_catch(copy: Path, bad: Mutant, words: str) -> None:
    verdict = verdict_on(copy, bad)
    assert not verdict.caught
    assert words in verdict.detail
    assert (copy / "proto/frostline_contract/small.py").read_text() == MODULE


def test_half_planted_edits_are_taken_out_too(copy: Path) -> None:
    edits = (*mutant("x + x", "x").edits, *mutant("absent", "y").edits)
    with pytest.raises(PlantError, match="0 times"), planted(copy, Mutant("m", "a bug", edits, ())):
        pytest.fail("the second edit cannot be planted")
    assert (copy / "proto/frostline_contract/small.py").read_text() == MODULE


def test_tests_that_hang_are_no_catch(copy: Path) -> None:
    (copy / "tests" / "test_slow.py").write_text("import time\n\n\ndef test_slow():\n    time.sleep(60)\n    assert True\n")
    with pytest.raises(PlantError, match="did not end within 2 s"):
        run_tests(copy, ("tests/test_slow.py",), seconds=2)


def test_imports_from_elsewhere_are_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_imports(copy) is None
    monkeypatch.setattr("tests.mutants.plant._environment", lambda copy: {"PATH": ""})
    with pytest.raises(PlantError, match="imports do not come from the copy"):
        check_imports(copy)


def test_each_bug_of_the_table_has_a_name_edits_and_tests() -> None:
    assert len(MUTANTS) == len({m.name for m in MUTANTS}) == 87
    assert all(m.edits and m.tests for m in MUTANTS)


@pytest.mark.parametrize("mutant_", MUTANTS, ids=lambda one: one.name)
def test_each_bug_can_still_be_planted(mutant_: Mutant) -> None:
    """The table names places in the code by their text, and goes stale with it."""
    for edit in mutant_.edits:
        assert (REPOSITORY / edit.file).read_text().count(edit.old) == 1, f"{edit.file}: {edit.old!r}"
    for test in (argument for argument in mutant_.tests if argument.startswith("tests/")):
        assert (REPOSITORY / test.partition("::")[0]).exists(), test
