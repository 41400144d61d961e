"""Plants a bug in a copy of the source tree and runs tests against the copy."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COPIED = ("proto", "controller", "trainer", "cache_server", "tests", "tools", "examples", "docs", "pyproject.toml")
IMPORT_ROOTS = ("proto/gen", "proto", "controller", "trainer", "cache_server")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".cache", ".pytest_cache", ".hypothesis", "runs", "build")
TESTS_FAILED = 1
"""pytest's exit status where tests ran and some failed. Any other one (2: could not be collected) catches nothing."""


class PlantError(Exception):
    """A bug that cannot be planted, or tests that prove nothing about it: the table has to be corrected."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which occurs exactly once in `file` (relative to the repository), by `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One bug. name: short, for the command line. bug: what goes wrong. tests: pytest arguments that must catch it."""

    name: str
    bug: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class TestRun:
    """One run of pytest. exit_status: its own. summary: its last line. output: all that it printed."""

    __test__ = False
    exit_status: int
    summary: str
    output: str


def copy_sources(repository: Path, target: Path) -> Path:
    """Copy the files that tests need to `target`, which must not exist. Returns `target`."""
    target.mkdir(parents=True)
    for name in COPIED:
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=LEFT_OUT)
        elif source.exists():
            shutil.copy2(source, target / name)
    return target


@contextmanager
def planted(copy: Path, mutant: Mutant) -> Iterator[None]:
    """Yield the copy with the bug in it, and restore it afterwards. Raises PlantError where a text does not occur exactly
    once."""
    if not mutant.edits:
        raise PlantError(f"{mutant.name}: no edits in the table, nothing to plant")
    before: dict[Path, str] = {}
    try:
        for edit in mutant.edits:
            file = copy / edit.file
            if not file.exists():
                raise PlantError(f"{mutant.name}: {edit.file} does not exist")
            text = file.read_text(encoding="utf-8")
            found = text.count(edit.old)
            if found != 1 or edit.old == edit.new:
                raise PlantError(f"{mutant.name}: {edit.file} holds the text {found} times, expected 1: {edit.old!r}")
            before.setdefault(file, text)
            file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
        yield
    finally:
        for file, text in before.items():
            file.write_text(text, encoding="utf-8")


def run_tests(copy: Path, tests: Sequence[str], seconds: float = 600.0) -> TestRun:
    """Run pytest on `tests` in the copy, stopping at the first failure; the copy's packages come before installed ones."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=_environment(copy), capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PlantError(
            f"tests {' '.join(tests)} did not end within {seconds:g} s; give them a deadline of their own"
        ) from error
    output = done.stdout + done.stderr
    lines = [line for line in output.splitlines() if line.strip()]
    return TestRun(done.returncode, lines[-1].strip("= ") if lines else "no output", output)


def check_imports(copy: Path) -> None:
    """Raise PlantError where Python would import an installed package instead of the copy's: then no bug could show."""
    packages = [path.parent.name for root in IMPORT_ROOTS for path in sorted((copy / root).glob("frostline_*/__init__.py"))]
    code = "import importlib.util as u, sys; print(*[u.find_spec(n).origin for n in sys.argv[1:]], sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code, *packages], cwd=copy, env=_environment(copy), capture_output=True, text=True, check=False
    )
    foreign = [origin for origin in done.stdout.split() if not Path(origin).is_relative_to(copy)]
    if done.returncode or foreign:
        raise PlantError(f"imports do not come from the copy {copy}: {foreign or done.stderr}")


def import_path(tree: Path, *further: Path) -> str:
    """Return the PYTHONPATH with which a tree's own packages are imported. further: folders that come last."""
    return os.pathsep.join(map(str, (*(tree / root for root in IMPORT_ROOTS), *further)))


def _environment(copy: Path) -> dict[str, str]:
    # Without bytecode: two edits of one file within a second and of one length would look alike to Python's cache.
    return {**os.environ, "PYTHONPATH": import_path(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
