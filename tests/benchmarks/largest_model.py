"""The largest model that four workers with a memory cap can train, by family of shapes: planned, then trained, with its peak."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.devices import WORKERS
from tests.benchmarks.fixed_speed import ROOT, Walked, walk
from tests.benchmarks.fixed_speed_jobs import fixed_speed_job
from tests.benchmarks.measuring import Effort, Report, Row, Spread

CAP = 32 << 20
"""Bytes of a worker: room for some blocks of this width with their gradients and moments."""
WIDTH, HEADS, TOKENS, VOCABULARY = 128, 4, 64, 512
STEPS, PROFILED_BLOCKS = 6, 2
PLAIN = "data parallel"
NO_PLACE = "no placement of"
"""Begins a run's refusal of a model that does not fit."""


def largest_model(effort: Effort) -> Report:
    """Ask the planner for the largest model of each family of shapes, and train each for some steps."""
    families = _planned()
    plain = next(one for one in families if one["family"] == PLAIN)
    chosen = families[:2] if effort.quick else families
    return Report(
        "The largest model under a memory cap",
        f"{WORKERS} workers of one node that may hold {CAP >> 20} MiB each (`placement.worker_memory_bytes`) train a GPT-2 of "
        f"width {WIDTH}, {TOKENS} tokens a sample, float32, AdamW, nothing frozen. For each family of shapes: the most blocks "
        "for which the planner finds room, and the peak of the fullest worker's tensors while a model of so many blocks takes "
        f"{STEPS} steps. Where the planner has measured no tiles it knows a group's memory by assumption; if a run that has "
        "measured them refuses the model, one block less is trained, and a note says so. No figure depends on a clock.",
        [row for one in chosen for row in _rows(one, plain, _parameters_of_a_block(families))],
    )


def _planned() -> list[dict[str, Any]]:
    """Return the planner's largest model of each family, from what a worker measures."""
    small = job(PROFILED_BLOCKS, {"pp_degree": 1, "dp_degree": WORKERS})
    profile = walk(small).run.profile
    small["placement"] |= {"pp_degree": None, "dp_degree": None}
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        file, measured = Path(text) / "job.yaml", Path(text) / "profile.json"
        file.write_text(yaml.safe_dump(small, sort_keys=False))
        measured.write_text(profile.model_dump_json())
        words = ["plan", "-f", str(file), "--profile", str(measured), "--json"]
        command = [sys.executable, "-m", "frostline_controller.cli", *words]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    largest: list[dict[str, Any]] = json.loads(found.stdout)["plans"][0]["sharing"]["largest"]
    return largest


def job(blocks: int, placement: dict[str, Any], **training: Any) -> dict[str, Any]:
    """Return a job of a model of so many blocks under the cap. training: further fields of that section."""
    section = {"worker_cpus": None, "worker_memory_bytes": CAP, "workers_per_pod": WORKERS, **placement}
    found = fixed_speed_job("language", STEPS, (1, 1), placement=section)
    found["model"]["config"] |= {"n_embd": WIDTH, "n_head": HEADS, "n_layer": blocks, "n_positions": TOKENS}
    found["data"] |= {"sequence_length": TOKENS, "vocabulary_size": VOCABULARY}
    found["training"] |= training
    return found


def job_of(room: dict[str, Any]) -> dict[str, Any]:
    """Return a job that trains a family's largest model in the shape in which it fits.

    Numerics are as coarse as the shape allows: tiles only for groups, ranges of state only where replicas share it out.
    """
    columns, depth, shard = room["columns"], room["depth"], room["shard"]
    placement = {"pp_degree": room["degrees"]["pp"], "dp_degree": room["degrees"]["dp"], "shard": shard}
    placement |= {"tp_degree": columns, "tp_depth": depth}
    training: dict[str, Any] = {"tensor_tiles": {"inner": columns, "hidden": depth}} if columns * depth > 1 else {}
    if room["rows_split"]:
        placement["tensor_rows"] = "split"
        training["tensor_tiles"] |= {"rows": columns}
    if shard != "none":
        training["state_ranges"] = WORKERS
    return job(room["blocks"], placement, **training)


def _parameters_of_a_block(rooms: list[dict[str, Any]]) -> float:
    least, most = (pick(rooms, key=lambda one: one["blocks"]) for pick in (min, max))
    return (most["parameters"] - least["parameters"]) / (most["blocks"] - least["blocks"])


def _trained(room: dict[str, Any], block: float) -> tuple[dict[str, Any], Walked, str]:
    """Train the room's largest model, or one block less where the run has no place for it. Returns the room of the model that was
    trained, its run, and a note."""
    try:
        return room, walk(job_of(room)), ""
    except RuntimeError as refused:
        if room["columns"] * room["depth"] == 1 or NO_PLACE not in str(refused):
            raise
    less = {**room, "blocks": room["blocks"] - 1, "parameters": room["parameters"] - block}
    return less, walk(job_of(less)), f"planned without measured tiles: {room['blocks']} blocks, for which the run had no place"


def _rows(asked: dict[str, Any], plain: dict[str, Any], block: float) -> list[Row]:
    room, walked, note = _trained(asked, block)
    peak, planned = _peaks(walked)
    shape = {"pp": room["degrees"]["pp"], "dp": room["degrees"]["dp"], "tp": room["columns"], "depth": room["depth"]}
    case = f"{room['family']}, {' x '.join(f'{name} {degree}' for name, degree in shape.items() if degree > 1)}"
    sides = {"blocks": room["blocks"], "parameters M": room["parameters"] / 1e6}
    more = Spread.of([room["parameters"] / plain["parameters"]])
    peaks = {"counted MiB": peak / (1 << 20), "planned MiB": planned / (1 << 20)}
    return [
        Row(case, f"parameters / those of {PLAIN}", "x", more, sides, note=note),
        Row(case, "counted peak / cap", "x", Spread.of([peak / CAP]), peaks, at_most=1.0),
    ]


def _peaks(walked: Walked) -> tuple[int, int]:
    """Return the peak of the fullest worker's tensors, and the planner's figure for it, in bytes."""
    data = walked.run.data
    held = [int(one["tensor_bytes"]) for one in data.result["memory"]]
    plan = data.plan_of(data.records[-1].generation)
    assert plan is not None and all(held), "a run with worker_memory_bytes counts its tensors"
    return max(held), plan.placement.predicted_peak_bytes
