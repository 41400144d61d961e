"""A checkout of another revision, and a process that measures in a tree."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from types import TracebackType

from tests.benchmarks.against.cases import Sample
from tests.mutants.plant import import_path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def check_out(revision: str, folder: Path) -> Path:
    """Write the revision's files below `folder`, with this package's files in the place of its own. Returns the tree.

    Raises SystemExit if git does not know the revision.
    """
    done = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"REV={revision}: {done.stderr.decode().strip()}; give a commit, tag or branch of this repository")
    tree = folder / "old"
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(tree, filter="data")
    target = tree / HERE.relative_to(ROOT)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(HERE, target, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


class Side:
    """A process in a tree, prepared for one case. Raises RuntimeError if the tree cannot be measured."""

    def __init__(self, tree: Path, case: str, log: Path) -> None:
        self._tree, self._log = tree, log
        environment = {**os.environ, "PYTHONPATH": import_path(tree, tree)}
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.against.side", case], cwd=tree, env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def await_ready(self) -> None:
        """Wait until the case is prepared with this tree's packages."""
        foreign = [origin for origin in json.loads(self._answer()) if not Path(origin).is_relative_to(self._tree)]
        if foreign:
            raise RuntimeError(f"{self._tree}: imports come from {foreign}, not from the tree")

    def turn(self) -> Sample:
        """Measure once."""
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        return Sample(**json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._log.read_text().strip().splitlines()[-1:]
            raise RuntimeError(f"{self._tree}: {' '.join(last) or 'it ended'} (see {self._log})")
        return line

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if kind is not None:
            self._process.terminate()  # perhaps within a turn, which then ends its own processes
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
