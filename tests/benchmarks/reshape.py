"""Reshape in place against a restart of the processes: four workers, both until every worker is ready to train."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from frostline_contract.plan import GenerationId, Plan
from frostline_trainer.checkpoints.retention import Retention
from frostline_trainer.checkpoints.writing import CheckpointWriter, Snapshot, WriterNotices
from frostline_trainer.step.unit_state import export_unit
from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds, ratios
from tests.benchmarks.members import call_all, make_plan, store_ports
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import NUM_UNITS, SUBJECTS, new_context, placement_of
from tests.warm_workers import WarmWorkers

WORKERS = 4
SHAPES = ((2, 2), (1, 4), (4, 1))
"""The shapes in the order in which they are entered, starting from (4, 1)."""
PAIRS = 4
GOAL = 20.0
ROOT = Path(__file__).parents[2]


def reshape(effort: Effort) -> Report:
    """Measure the seconds until ready, each way."""
    rows = [_row(subject, effort) for subject in SUBJECTS]
    return Report(
        "Reshape in place against restarting the processes",
        "Four workers go (4, 1) -> (2, 2) -> (1, 4) -> (4, 1) and so on. In place: process groups over a fresh plan, weights and "
        "both AdamW moments peer to peer, stages, gradient memory and optimizer built anew. Restarted: four interpreters start, "
        "import torch and the models, build data and model, load the checkpoint's units for the same shape, and meet. Either "
        "clock stops when all four have passed a barrier and would compute their next micro-batch. In a run groups are formed in "
        "the background while training goes on; here they count.",
        rows,
    )


def _row(subject: str, effort: Effort) -> Row:
    pool = WarmWorkers()
    in_place, restarted, parts, moved = [], [], [], []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_checkpoint(subject, folder)
        try:
            ports = store_ports(pool, WORKERS)
            plan = make_plan(placement_of(4, 1), ports)
            call_all(pool, "start_series", WORKERS, plan=plan.model_dump(mode="json"), subject=subject)
            for turn in range(effort.pairs(PAIRS)):
                plan = make_plan(placement_of(*SHAPES[turn % len(SHAPES)]), ports, plan)
                answers = call_all(pool, "reshape", WORKERS, plan=plan.model_dump(mode="json"))
                in_place.append(_span(answers))
                moved.append(sum(answer["bytes"] for answer in answers) / 1e6)
                seconds, cold = restart(subject, plan, folder)
                restarted.append(seconds)
                parts.append(cold)
            call_all(pool, "end_series", WORKERS)
        finally:
            pool.close()
    sides = {"in place ms": milliseconds(in_place), "restart ms": milliseconds(restarted), "MB moved": statistics.median(moved)}
    words = ", ".join(
        f"{name} {statistics.median(part[name] for part in parts):.2f}" for name in ("import", "build", "load", "meet")
    )
    return Row(subject, "restart / in place", "x", Spread.of(ratios(restarted, in_place)), sides, at_least=GOAL,
               note=f"seconds of the slowest restarted process after its interpreter ran: {words}")  # fmt: skip


def _span(answers: list[dict[str, float]]) -> float:
    """Return the seconds from the first worker's begin to the last worker's readiness."""
    return max(answer["ready"] for answer in answers) - min(answer["started"] for answer in answers)


def restart(subject: str, plan: Plan, folder: Path) -> tuple[float, dict[str, float]]:
    """Start a process for each worker of the plan and end them again. Returns the seconds until all are ready, and the slowest
    process's seconds by part."""
    (folder / "port").unlink(missing_ok=True)
    cold = plan.model_copy(update={"start": "checkpoint", "checkpoint_path": "0/1.1/1", "base": None, "source_indices": ()})
    (folder / "plan.json").write_text(cold.model_dump_json())
    command = [sys.executable, "-m", "tests.benchmarks.cold_start", subject]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    started = time.monotonic()
    processes = [
        subprocess.Popen([*command, worker, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                         env=environment)
        for worker in plan.placement.workers
    ]  # fmt: skip
    try:
        lines = [_first_line(process) for process in processes]
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(60)
    slowest = max(lines, key=lambda line: line["ready_at"])
    return slowest["ready_at"] - started, slowest


def _first_line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a restarted worker ended with status {process.wait(60)} before it was ready")
    return json.loads(line)


def write_checkpoint(subject: str, root: Path) -> None:
    """One complete checkpoint of the subject after a step, at 0/1.1/1 below `root`."""
    context = new_context(subject)
    Stepper(context).step()
    units = {unit: export_unit(unit, context.cut.units[unit], context.moments) for unit in range(NUM_UNITS)}
    manifest = {"lineage": 0, "step": 1, "guard_loss": None}
    writer = CheckpointWriter(Retention(keep_last=1, watch_steps=0), WriterNotices())
    generation = GenerationId(incarnation=1, counter=1)
    snapshot = Snapshot(root / "0" / "1.1" / "1", units, {}, NUM_UNITS, generation, manifest, publishes=True)
    snapshot.stable.set()
    writer.write(snapshot)
    writer.close()
    if not (root / "0" / "1.1" / "1" / "manifest.json").exists():
        raise OSError(f"{root}: the checkpoint was not written; is the disk full?")
