"""`make same-bits REV=...`: do the example jobs still end with that revision's bits? Exit status 1 where one does not.

Each job is the revision's own file, run for a few steps by one worker in both trees. So a new field whose default is to change
nothing is held to that: the older tree does not know the field. --only NAME runs one job (may be repeated).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.against.trees import ROOT, check_out
from tests.mutants.plant import import_path

JOBS = ("*/*.yaml", "*/glue/*.yaml")
NOT_JOBS = "clusters"
STEPS = 6
BRIEF = (
    f"training.steps={STEPS}", "training.epochs=null", "training.micro_batch_size=8", "training.reduction_leaves=2",
    "evaluation.test_at_end=false", "placement.workers=1", "faults=[]",
)  # fmt: skip
"""Settings of a brief run. The numbers that `auto` stands for depend on what a machine measures, so they are fixed."""
SECONDS = 600


@dataclass(frozen=True)
class Ended:
    """How a brief run ended: with a digest, or with words that say why it has none."""

    digest: str = ""
    why: str = ""


def main(words: list[str] | None = None) -> int:
    """Run each job in both trees and print a line for it. Exit status 2: no job could be compared."""
    options = _arguments().parse_args(words)
    compared, differ = 0, []
    with tempfile.TemporaryDirectory(prefix="frostline-same-bits-") as place:
        folder = Path(place)
        tree = check_out(options.revision, folder)
        extensions = _extensions(folder)
        for job in options.only or jobs(tree):
            _lend_data(tree, job)
            then = _run(tree, tree / job, folder, extensions)
            now = _run(ROOT, tree / job, folder, extensions) if then.digest else Ended()
            verdict = judge(then, now)
            compared += bool(then.digest and now.digest)
            differ += [job] if verdict.startswith("DIFFERENT") else []
            print(f"{job:<56} {verdict}", flush=True)
    print(f"{compared} jobs compared with {options.revision}" + (f"; different: {', '.join(differ)}" if differ else ""))
    return 1 if differ else 0 if compared else 2


def judge(then: Ended, now: Ended) -> str:
    """Say in words whether a job has kept its bits. A job that ran then and does not now counts as different."""
    if then.digest and now.digest:
        return (
            f"the same bits: {now.digest[:16]}" if then.digest == now.digest else f"DIFFERENT: {then.digest} is now {now.digest}"
        )
    return f"DIFFERENT: it runs no more: {now.why}" if then.digest else f"not compared: {then.why}"


def jobs(tree: Path) -> list[str]:
    """Return the example jobs of a tree, relative to it."""
    found = [path for pattern in JOBS for path in (tree / "examples").glob(pattern) if path.parent.name != NOT_JOBS]
    return sorted(str(path.relative_to(tree)) for path in found)


def _lend_data(tree: Path, job: str) -> None:
    """Let a job of the other tree read what was fetched or made for this tree's job of that folder; it is not committed."""
    ours, theirs = ((root / job).parent / ".cache" for root in (ROOT, tree))
    if ours.is_dir() and not theirs.exists():
        theirs.symlink_to(ours)


def _extensions(folder: Path) -> Path:
    """Install the example of an extension into a folder, so that its entry points are found. Returns the folder."""
    target = folder / "extensions"
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", target, ROOT / "examples" / "extension"]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)], check=True)
    return target


def _run(tree: Path, job: Path, place: Path, extensions: Path) -> Ended:
    """Run a job briefly with a tree's packages. The run directory is in `place` for as long as it is needed."""
    path = import_path(tree, tree, extensions)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        words = ["run", "-f", job, "--out", Path(folder) / "run", "--quiet", "--workers", "1"]
        words += [word for setting in BRIEF for word in ("--set", setting)]
        done = subprocess.run(
            [sys.executable, "-m", "frostline_controller.cli.main", *map(str, words)],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            return Ended(why=reason(done.stderr))
        return Ended(digest=json.loads((Path(folder) / "run" / "result.json").read_text())["digest"])


def reason(errors: str) -> str:
    """Return the lines of a command's errors that say what is wrong, as one: those before the place of its logs."""
    lines = [line.strip() for line in errors.strip().splitlines()]
    return " ".join(line for line in lines[:2] if not line.startswith("logs:")).removeprefix("frostline: ")[:300]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make same-bits", description=__doc__)
    parser.add_argument("revision", help="commit, tag or branch that this tree is compared with")
    parser.add_argument("--only", action="append", metavar="NAME", help="a job's file, such as examples/extension/stripes.yaml")
    return parser


if __name__ == "__main__":
    sys.exit(main())
