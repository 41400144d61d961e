"""Predicted against measured step time on workers of fixed speed: the accuracy of the planner's cost model."""

from statistics import median
from typing import Any

from tests.benchmarks.devices import SHARE, WORKERS
from tests.benchmarks.fixed_speed import AT_ONE_SPEED, Stretch, Walked, walk
from tests.benchmarks.fixed_speed_jobs import fixed_speed_job, through
from tests.benchmarks.measuring import Effort, Report, Row, Spread
from tests.benchmarks.subjects import SUBJECTS

SHAPES = ((4, 1), (2, 2), (1, 4), (3, 1))
FROZEN = 4
"""Frozen units: the embedding and three of six blocks."""
STEPS = {"digits": 20, "bert": 16}
"""Steps in each shape."""
SHAPE_GOAL_PERCENT, RUN_GOAL_PERCENT = 10.0, 7.0


def predicted(effort: Effort) -> Report:
    """Measure every shape unfrozen, half frozen, and half frozen and cached; then a whole run that freezes and reshapes by
    itself."""
    rows = []
    for subject in SUBJECTS:
        steps = 12 if effort.quick else STEPS[subject]
        rows += _shapes(subject, steps)
        rows.append(_whole_run(subject, steps))
    return Report(
        "Predicted against measured steps",
        f"Whole runs on {WORKERS} workers, each with {SHARE:g} of one processor by a control group's quota, in "
        f"{', '.join(map(str, SHAPES))} (pipeline, replicas), with nothing frozen, with the embedding and half the blocks frozen "
        "from step 1 and computed, and with these read from the cache: the planner's step time, from what the run's own workers "
        f"measured when they joined, above the steps that it then took. {AT_ONE_SPEED} Notes have both sides by parts. A whole "
        "run freezes by a schedule and lets the planner reshape; `frostline simulate` replays it from the same measurements.",
        rows,
    )


def _shapes(subject: str, steps: int) -> list[Row]:
    # The first pass over the data fills the cache; the prediction is for a filled cache.
    filling = -(-2 * FIRST_PASS[subject] // steps)
    kinds = {"unfrozen": ({}, 0), "half frozen": ({"frozen": FROZEN}, 0), "cached": ({"frozen": FROZEN, "cached": True}, filling)}
    rows = []
    for kind, (how, leading) in kinds.items():
        found = walk(_walk_job(subject, steps, leading, **how)).stretches[leading and 1 :]
        rows += [_row(f"{subject} {one.placement.pp_degree} x {one.placement.dp_degree}, {kind}", one) for one in found]
    errors = [abs(row.spread.median) for row in rows]
    return [*rows, Row(subject, "all shapes: median error", "%", Spread.of(errors), at_most=SHAPE_GOAL_PERCENT)]


FIRST_PASS = {"digits": 4, "bert": 8}
"""Steps of a pass over the training split, or a few more."""


def _walk_job(subject: str, steps: int, leading: int, **how: Any) -> dict[str, Any]:
    """Return a job that passes through all shapes. leading: stretches in the first shape before the run leaves and enters it
    again."""
    shapes = [SHAPES[-1], *SHAPES] if leading else list(SHAPES)
    reshapes = [{**one, "step": one["step"] + max(0, leading - 1) * steps} for one in through(shapes, steps)]
    total = steps * (len(shapes) + max(0, leading - 1))
    return fixed_speed_job(subject, total, shapes[0], **how, reshapes=reshapes)


def _row(case: str, stretch: Stretch) -> Row:
    sides = {"measured ms": 1e3 * stretch.measured, "predicted ms": 1e3 * stretch.predicted, "machine slower x": stretch.slowness}
    error = Spread(min(stretch.errors), stretch.error, max(stretch.errors), len(stretch.errors))
    return Row(case, "predicted above measured", "%", error, sides, note=stretch.in_words())


def _whole_run(subject: str, steps: int) -> Row:
    """Measure a run that freezes stepwise up to the last blocks, with the planner's own reshapes."""
    total = 6 * steps
    job = fixed_speed_job(subject, total, SHAPES[0], cached=False)
    del job["placement"]["pp_degree"], job["placement"]["dp_degree"]
    job["placement"] |= {"initial_pp_degree": 4, "reshape_every_freeze": True}
    job["cache"]["use"] = "auto"
    interval = max(8, steps // 2)
    job["freeze"] = {
        "interval_steps": interval,
        "policy": {"name": "manual", "points": {2: 2, 5: 4, 8: 5}},
        "rails": {"off": ["guard"]},
    }
    return whole_run_row(subject, walk(job))


def whole_run_row(subject: str, walked: Walked) -> Row:
    """Return a row: seconds of all steps and of all stops for reshapes, against the seconds of the replay."""
    data = walked.run.data
    stood = [event.seconds for event in data.events if event.kind == "reshape"]
    took = sum(record.step_seconds / walked.slowness(record) for record in data.records) + sum(stood)
    replayed = walked.answer.simulation.arms["job"]
    error = 100 * abs(replayed.seconds / took - 1)
    shapes = list(dict.fromkeys(f"{one.degrees['pp']} x {one.degrees['dp']}" for one in data.records))
    freezes = sorted({record.freeze_point for record in data.records})
    note = (
        f"{len(data.records)} steps through {', '.join(shapes)} and freeze points {', '.join(map(str, freezes))}; "
        f"{len(stood)} reshapes stopped it for {1e3 * median(stood or [0.0]):.3g} ms each; the replay's: "
        + "; ".join(f"{span.steps} steps in {span.placement.pp_degree} x {span.placement.dp_degree}" for span in replayed.spans)
    )
    sides = {"measured s": took, "replayed s": replayed.seconds}
    return Row(f"{subject}, whole run", "replay's error", "%", Spread.of([error]), sides, at_most=RUN_GOAL_PERCENT, note=note)
