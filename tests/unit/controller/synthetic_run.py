"""A run directory that keeps to the documented schemas: two freezes, three shapes, a failure and a cut lineage."""

import json
import math
from pathlib import Path
from typing import Any

from frostline_contract.job import dump_job, parse_job
from frostline_contract.plan import Decision, GenerationId, Placement, Plan
from frostline_contract.statistics import GuardReading, IntervalStatistics, StepRecord

UNITS = 8
WORKERS = tuple(f"pod-{i}-uid/nonce{i}" for i in range(4))
REPLACEMENT = "pod-3-uid-again/nonce9"
STARTED = 1_700_000_000.0
FAILED_AT, RESTORED_AT, TOTAL = 95, 80, 120


def job_values(**changes: Any) -> dict[str, Any]:
    """Return a small job file as a mapping, with whole sections replaced by `changes`."""
    values = {
        "name": "digits",
        "model": {"family": "vit", "config": {"hidden_size": 64, "num_hidden_layers": UNITS - 2, "patch_size": 2}},
        "task": {"kind": "image_classification", "num_labels": 10},
        "data": {"source": "digits"},
        "training": {"steps": TOTAL, "batch_size": 64, "micro_batch_size": 8},
        "freeze": {"interval_steps": 20},
    }
    return {**values, **changes}


def write_run(folder: Path, finished: bool = True) -> Path:
    """Write the run directory and return its path."""
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(dump_job(parse_job(job_values())))
    _write_lines(folder / "metrics.jsonl", _metrics())
    _write_lines(folder / "statistics.jsonl", [_statistics(number).model_dump() for number in range(1, TOTAL // 20 + 1)])
    _write_lines(folder / "plans.jsonl", _plans())
    _write_lines(folder / "events.jsonl", events())
    if finished:
        (folder / "result.json").write_text(json.dumps(result()))
    return folder


def result() -> dict[str, Any]:
    return {
        "status": "completed",
        "steps": TOTAL,
        "wall_seconds": 42.5,
        "digest": "ab" * 32,
        "final": {"loss": 0.2104, "accuracy": 0.9611},
        "settings": {"numerics": "exact"},
        "events": events(),
    }


def events() -> list[dict[str, Any]]:
    names = ("time_seconds", "step", "generation", "kind", "freeze_point", "degrees", "reason", "seconds")

    def event(*values: Any) -> dict[str, Any]:
        return {"num_microbatches": 8, "seconds": 0.0, **dict(zip(names, values, strict=False))}

    return [
        event(0.4, 0, "1.1", "start", 0, {"dp": 1, "pp": 4}, "4 workers registered"),
        event(14.0, 43, "1.1", "freeze", 2, {"dp": 1, "pp": 4}, "gradient_argmin: block 1 of 6 has the least norm"),
        event(15.2, 50, "1.2", "reshape", 2, {"dp": 2, "pp": 2}, "saves 4.1 s of the 21 s left for 0.3 s", 0.31),
        event(15.6, 50, "1.2", "cache", 2, {"dp": 2, "pp": 2}, "fetch 0.2 ms against 0.9 ms to compute"),
        event(27.0, 83, "1.2", "freeze", 4, {"dp": 2, "pp": 2}, "gradient_argmin: block 3 of 6 <has the> least norm"),
        event(31.0, 95, "1.2", "failure", 4, {"dp": 2, "pp": 2}, "pod-3: killed by signal 9"),
        event(31.4, 80, "1.3", "join", 2, {"dp": 2, "pp": 2}, "pod-3 replaced"),
        event(31.9, 80, "1.3", "reshape", 2, {"dp": 2, "pp": 2}, "restored from the checkpoint of step 80", 0.9),
        event(36.0, 100, "1.4", "reshape", 4, {"dp": 4, "pp": 1}, "every trainable unit fits one worker", 0.22),
        event(42.1, 120, "1.4", "checkpoint", 4, {"dp": 4, "pp": 1}, "the run's end", 0.08),
    ]


def _shape(step: int, lineage: int) -> tuple[str, int, int, int]:
    """(generation, pp_degree, dp_degree, freeze point) of a step in a lineage."""
    freeze_point = 0 if step < 43 else 2 if step < 83 else 4
    if step <= 50:
        return "1.1", 4, 1, freeze_point
    if lineage == 0:
        return "1.2", 2, 2, freeze_point
    return ("1.3", 2, 2, freeze_point) if step <= 100 else ("1.4", 1, 4, freeze_point)


def record(step: int, lineage: int) -> StepRecord:
    generation, pp_degree, dp_degree, freeze_point = _shape(step, lineage)
    norms = tuple(
        0.0 if unit < freeze_point else (0.2 + 0.15 * unit) * math.exp(-step / (25 + 14 * unit)) for unit in range(UNITS)
    )
    seconds = 0.5 / (dp_degree + 0.4 * pp_degree) * (1 - 0.06 * freeze_point)
    return StepRecord(
        lineage=lineage,
        step=step,
        loss=2.3 * math.exp(-step / 45) + 0.12 * abs(math.sin(step)),
        learning_rate=1e-3 * (1 - step / 130),
        gradient_norm=math.sqrt(sum(norm * norm for norm in norms)),
        unit_gradient_norms=norms,
        freeze_point=freeze_point,
        degrees={"dp": dp_degree, "pp": pp_degree},
        generation=generation,
        step_seconds=seconds,
        step_parts={"forward": seconds * 0.3, "backward": seconds * 0.45, "exchange": seconds * 0.15, "vote": seconds * 0.1},
        samples_per_second=64 / seconds,
        cache_hits=0 if step < 52 else min(64, step - 40),
        cache_misses=0 if step < 52 else max(0, 104 - step),
        time_seconds=STARTED + 0.33 * step + (5 if lineage else 0),
        evaluation={"loss": 2.2 * math.exp(-step / 45), "accuracy": 1 - 0.9 * math.exp(-step / 40)} if step % 20 == 0 else {},
    )


def _metrics() -> list[dict[str, Any]]:
    first = [record(step, 0).model_dump() for step in range(1, FAILED_AT + 1)]
    again = [record(step, 1).model_dump() for step in range(RESTORED_AT + 1, TOTAL + 1)]
    # A record that arrives twice, and one of the old lineage that arrives late, change nothing.
    return [*first, first[-1], {"lineage": 1, "starts_at_step": RESTORED_AT}, record(FAILED_AT + 1, 0).model_dump(), *again]


def _statistics(number: int) -> IntervalStatistics:
    last = record(number * 20, 0 if number * 20 <= RESTORED_AT else 1)
    return IntervalStatistics(
        number=number,
        lineage=last.lineage,
        first_step=number * 20 - 19,
        last_step=number * 20,
        freeze_point=last.freeze_point,
        unit_gradient_norms=last.unit_gradient_norms,
        unit_parameters=(1000,) * UNITS,
        learning_rate=last.learning_rate,
        learning_rate_peak=1e-3,
        loss_mean=last.loss,
        accepted_steps=20,
        guard=GuardReading(losses=(0.3, 0.4)),
    )


Bounds = tuple[int, ...]


def _plan(
    counter: int, lineage: int, freeze_point: int, bounds: Bounds, leaves: Bounds, workers: tuple[str, ...], reason: str
) -> dict[str, Any]:
    placement = Placement(
        degrees={"dp": len(leaves) - 1, "pp": len(bounds) - 1},
        stage_bounds=bounds,
        leaf_bounds=leaves,
        workers=workers,
        use_cache=counter > 1,
    )
    plan = Plan(
        generation=GenerationId(incarnation=1, counter=counter),
        lineage=lineage,
        start="fresh" if counter == 1 else "continue",
        freeze_point=freeze_point,
        placement=placement,
        reason=reason,
    )
    return {**plan.model_dump(), "kind": "plan"}


def _plans() -> list[dict[str, Any]]:
    replaced = (*WORKERS[:3], REPLACEMENT)
    freeze = Decision(
        number=2,
        interval=2,
        effective_step=43,
        freeze_point=2,
        kind="freeze",
        policy="gradient_argmin",
        reason="block 1 has the least norm",
    )
    return [
        {**_plan(1, 0, 0, (0, 2, 4, 6, 8), (0, 8), WORKERS, "the first plan"), "first_step": 1, "last_step": None},
        {**freeze.model_dump(), "decision_kind": "freeze", "kind": "decision"},
        {"kind": "plan_end", "generation": "1.1", "last_step": 50},
        {**_plan(2, 0, 2, (0, 5, 8), (0, 4, 8), WORKERS, "two blocks are frozen"), "first_step": 51, "last_step": None},
        {"kind": "plan_end", "generation": "1.2", "last_step": FAILED_AT},
        {**_plan(3, 1, 2, (0, 5, 8), (0, 4, 8), replaced, "pod-3 was replaced"), "first_step": 81, "last_step": None},
        {"kind": "plan_end", "generation": "1.3", "last_step": 100},
        {**_plan(4, 1, 4, (0, 8), (0, 2, 4, 6, 8), replaced, "four blocks are frozen"), "first_step": 101, "last_step": None},
    ]


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
