"""`python -m tests.benchmarks`: measure, keep the figures in docs/benchmarks.json, write docs/benchmarks.md from it.

--only NAME measures one (may be repeated) and keeps the others' figures; --quick is a smoke test that writes below --out only;
--pages FOLDER writes the pages from the committed figures into FOLDER/docs and measures nothing. `--only payoff` is a command of
its own: it takes hours, goes on where it ended, and writes docs/comparison/payoff.md.
"""

import os

# Before any module imports torch, which reads its number of threads from this variable.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import datetime
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Effort, Report, surroundings
from tests.benchmarks.payoff.command import main as payoff
from tests.benchmarks.writing import FORMAT_VERSION, JSON_NAME, verdict, write_pages

DOCS = Path(__file__).parents[2] / "docs"
BENCHMARKS = {
    "step_time": "one_worker:step_time",
    "norm_statistics": "one_worker:norm_statistics",
    "numerics": "several_workers:numerics",
    "kernels": "kernels:kernels",
    "pipelining": "several_workers:pipelining",
    "keeping": "keeping:keeping",
    "audits": "audits:audits",
    "tensor_tiles": "tensor_tiles:tensor_tiles",
    "tensor_groups": "tensor_groups:tensor_groups",
    "group_sums": "group_sums:group_sums",
    "largest_model": "largest_model:largest_model",
    "reshape": "reshape:reshape",
    "recovery": "recovery:recovery",
    "joining": "joining:joining",
    "goodput": "goodput:goodput",
    "cache_read": "cache_read:cache_read",
    "frozen_epoch": "frozen_epoch:frozen_epoch",
    "adapters": "adapters:adapters",
    "sweep": "sweep:sweep",
    "memory": "memory:memory",
    "thousand_workers": "thousand_workers:thousand_workers",
    "plan_speed": "plan_speed:plan_speed",
    "predicted": "predicted:predicted",
    "slices": "slices:slices",
    "schedules": "schedules:schedules",
}
"""The benchmarks in the page's order: name -> module:function. Each function takes an Effort and returns a Report."""


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns exit status 0, or 1 if a benchmark failed (the others' figures are kept); a missed goal is no
    failure."""
    words = sys.argv[1:] if argv is None else argv
    if words[:2] == ["--only", "payoff"]:
        return payoff(words[2:])
    options = _arguments().parse_args(words)
    if options.pages is not None:
        write_pages(json.loads((DOCS / JSON_NAME).read_text()), options.pages / "docs")
        return 0
    if options.quick and options.out == DOCS:
        options.out = DOCS.parent / "runs" / "quick-benchmarks"
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in options.only or BENCHMARKS:
        try:
            entry = run_one(name, options.quick)
        except Exception as error:
            failed.append(name)
            print(f"{name}: failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        write_pages(keep(options.out / JSON_NAME, name, entry), options.out)
        _print(name, entry)
    print(f"written to {options.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def run_one(name: str, quick: bool) -> dict[str, Any]:
    """Measure one benchmark. Returns its entry of benchmarks.json."""
    print(f"== {name}", flush=True)
    taken, started = surroundings(), time.monotonic()
    module, _, function = BENCHMARKS[name].partition(":")
    report: Report = getattr(importlib.import_module(f"tests.benchmarks.{module}"), function)(Effort(quick))
    return {
        "command": f"make bench ARGS='--only {name}{' --quick' if quick else ''}'",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": quick,
        "seconds": round(time.monotonic() - started, 1),
        "taken": taken,
        "report": report.as_json(),
    }


def keep(path: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Add an entry to the file's entries, in the page's order, and write the file. Returns the whole document."""
    known = json.loads(path.read_text())["benchmarks"] if path.exists() else {}
    known[name] = entry
    document = {"version": FORMAT_VERSION, "benchmarks": {each: known[each] for each in BENCHMARKS if each in known}}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)
    return document


def _print(name: str, entry: dict[str, Any]) -> None:
    for row in entry["report"]["rows"]:
        spread = row["spread"]
        print(f"  {row['case']}: {row['figure']} {spread['median']:.4g} {row['unit']} "
              f"({spread['low']:.4g} to {spread['high']:.4g}) {verdict(row)}")  # fmt: skip
    print(f"  {name} took {entry['seconds']:.0f} s", flush=True)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Benchmarks; results go to docs/.")
    others = f"{', '.join(BENCHMARKS)}; or payoff, as the first argument: its further ones are its own"
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="NAME", help=others)
    parser.add_argument("--quick", action="store_true", help="a smoke test: two pairs each, written to runs/quick-benchmarks")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of benchmarks.json and its pages; default: docs")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="only write the pages from docs/benchmarks.json to FOLDER/docs"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
