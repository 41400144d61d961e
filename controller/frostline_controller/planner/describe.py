"""The output of `frostline plan`: a plan as text for people and as JSON for programs."""

from collections.abc import Sequence
from typing import Any

from frostline_contract.mesh import in_words
from frostline_controller.planner.by_schedule import ScheduleCost
from frostline_controller.planner.cell_advice import GridAdvice
from frostline_controller.planner.cost import StepCost
from frostline_controller.planner.in_words import seconds_in_words
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.placing import Alternative, PlannedPlacement

PICTURE_WIDTH = 60
PICTURE_REPLICAS = 8


def describe(planned: PlannedPlacement, inputs: PlanInputs) -> str:
    """Return the plan as text: the shape, a picture of the stages, the parts of the step, the other shapes, and the reasons."""
    placement, cost = planned.placement, planned.cost
    virtual = f" x {placement.virtual_stages} virtual stages" if placement.virtual_stages > 1 else ""
    rate = cost.samples / cost.total_seconds if cost.total_seconds > 0 else float("inf")
    lines = [
        f"{in_words(placement.degrees)}{virtual}, {placement.schedule}, "
        f"{len(placement.workers)} workers, {len(planned.spares)} spare; "
        f"freeze point {inputs.freeze_point} of {inputs.num_units}",
        *_cells(planned, inputs),
        *_shares(planned, inputs),
        *_groups(planned),
        f"predicted step {seconds_in_words(cost.total_seconds)}, {rate:,.1f} samples/s, "
        f"at most {_bytes(cost.peak_bytes)} a worker",
        "",
        *_picture(planned, inputs),
        "",
        *_parts(cost),
    ]
    if planned.alternatives:
        lines += ["", *_alternatives(planned)]
    lines += ["", f"why: {planned.reason}", f"cache: {planned.cache_reason}"]
    if planned.moved_bytes:
        lines.append(f"moves {_bytes(planned.moved_bytes)} of weights and moments between workers")
    if planned.uncovered_stages:
        lines.append(f"{planned.uncovered_stages} stages have all owners in one failure domain")
    return "\n".join(lines)


def _cells(planned: PlannedPlacement, inputs: PlanInputs) -> list[str]:
    """Return the line about token cells and their slices; none where sequences are computed as a whole."""
    slices = planned.placement.slices
    if inputs.token_cells == 1:
        return []
    together = f"{len(slices)} slices of {', '.join(map(str, slices))} cells" if slices else "one slice"
    return [f"{inputs.token_cells} token cells a sequence, which travel in {together}"]


def _shares(planned: PlannedPlacement, inputs: PlanInputs) -> list[str]:
    """Return the line about shared-out state; none where each replica owns all of its stages' state."""
    placement = planned.placement
    if not placement.is_sharded:
        return []
    most = -(-inputs.state_ranges // placement.dp_degree)
    of_what = "moments and updates"
    if placement.gathers_at_use:
        of_what += "; of units that learn also weights, which are gathered at each use"
    return [f"state is shared out: a replica has at most {most} of {inputs.state_ranges} ranges of each unit's {of_what}"]


def _groups(planned: PlannedPlacement) -> list[str]:
    """Return the line about groups; none where each worker computes whole stages."""
    degree = planned.placement.shape.tp_degree
    if degree == 1:
        return []
    samples = ", and each has its part of a micro-batch's samples between them" if planned.placement.splits_rows else ""
    return [f"{degree} workers share each stage tile by tile{samples}; the figures are each member's"]


def as_json(planned: PlannedPlacement) -> dict[str, Any]:
    """Return the plan as plain data: placement, cost, spares, alternatives, reasons."""
    return {
        "placement": planned.placement.model_dump(mode="json"),
        "cost": _cost_json(planned.cost),
        "spares": list(planned.spares),
        "alternatives": [{**_shape_json(option), **_cost_json(option.cost)} for option in planned.alternatives],
        "reason": planned.reason,
        "cache_reason": planned.cache_reason,
        "moved_bytes": planned.moved_bytes,
        "uncovered_stages": planned.uncovered_stages,
    }


def grid_lines(grid: GridAdvice) -> list[str]:
    """Return the table of the best micro-batch size for each grid, and the advice, with fields and values for the job."""
    width = max(13, *(len(in_words(one.planned.placement.degrees)) for one in grid.rows)) + 2
    lines = [f"{'token_cells':<14}{'micro_batch_size':<18}{'shape':<{width}}{'schedule':<18}{'slices':>7}{'step':>12}"]
    for one in grid.rows:
        placement, seconds = one.planned.placement, seconds_in_words(one.planned.cost.total_seconds)
        suffix = " measured" * one.measured + " (the job's)" * (one is grid.now)
        shape, slices = in_words(placement.degrees), len(placement.slices) or 1
        row = f"{one.cells:<14}{one.micro_batch_size:<18}{shape:<{width}}{placement.schedule:<18}{slices:>7}{seconds:>12}"
        lines.append(row + suffix)
    if not grid.changed:
        return [*lines, f"{grid.reason}; the job has both already"]
    settings = " ".join(f"--set training.{name}={value}" for name, value in grid.changed.items())
    section = ", ".join(f"{name}: {value}" for name, value in grid.changed.items())
    return [
        *lines,
        f"{grid.reason}; try {settings}, or in the job training: {{{section}}} (numerics: a new run, which measures them)",
    ]


def grid_json(grid: GridAdvice) -> dict[str, Any]:
    """Return the advice on the grid as plain data."""
    candidates = [
        {
            "micro_batch_size": one.micro_batch_size,
            "token_cells": one.cells,
            "measured": one.measured,
            "slices": list(one.planned.placement.slices),
            "step_seconds": one.planned.cost.total_seconds,
            "peak_bytes": one.planned.cost.peak_bytes,
        }
        for one in grid.candidates
    ]
    return {"advised": grid.best.cells, "reason": grid.reason, "candidates": candidates}


def _shape_json(option: Alternative) -> dict[str, Any]:
    return {
        "degrees": option.shape.degrees,
        "virtual_stages": option.shape.virtual_stages,
        "schedule": option.schedule,
        "workers": option.workers,
    }


def _cost_json(cost: StepCost) -> dict[str, Any]:
    return {
        "step_seconds": cost.total_seconds,
        "parts": dict(cost.parts),
        "samples": cost.samples,
        "stage_seconds": list(cost.stage_seconds),
        "peak_bytes": cost.peak_bytes,
    }


def _picture(planned: PlannedPlacement, inputs: PlanInputs) -> list[str]:
    """Return a line of boxes, one a stage with * for a frozen and # for a trainable unit, and a line of workers a replica."""
    placement = planned.placement
    cells = [("*" if unit < inputs.freeze_point else "#") for unit in range(inputs.num_units)]
    boxes = []
    for stage in range(len(placement.stage_bounds) - 1):
        low, high = placement.stage_bounds[stage], placement.stage_bounds[stage + 1]
        body = "".join(cells[low:high])
        if inputs.num_units > PICTURE_WIDTH:  # too wide: frozen and trainable counts instead
            frozen = body.count("*")
            body = f"*{frozen} " * bool(frozen) + f"#{len(body) - frozen}"
        boxes.append(f"[{placement.shape.pp_rank_of_stage(stage)}:{body}]")
    lines = [f"stages  {' '.join(boxes)}    * frozen  # trainable"]
    for dp_rank in range(min(placement.dp_degree, PICTURE_REPLICAS)):
        members = placement.members_at(placement.shape.replica(dp_rank))
        named = " ".join(members[:PICTURE_REPLICAS]) + (
            f" and {len(members) - PICTURE_REPLICAS} more" if len(members) > PICTURE_REPLICAS else ""
        )
        low, high = placement.leaf_bounds[dp_rank], placement.leaf_bounds[dp_rank + 1]
        lines.append(f"replica {dp_rank}: {named}  (leaves {low} to {high - 1})")
    if placement.dp_degree > PICTURE_REPLICAS:
        lines.append(f"and {placement.dp_degree - PICTURE_REPLICAS} replicas more")
    return lines


def _parts(cost: StepCost) -> list[str]:
    """Return the lines of the step's parts that take any time, largest first, each with a bar."""
    lines = [f"{'part':<18}{'time':>10}{'share':>8}"]
    for name, seconds in sorted(cost.parts.items(), key=lambda item: -item[1]):
        if seconds > 0:
            share = seconds / cost.total_seconds
            lines.append(f"{name:<18}{seconds_in_words(seconds):>10}{share:>8.1%}  {'=' * round(40 * share)}".rstrip())
    return lines


def _alternatives(planned: PlannedPlacement) -> list[str]:
    best = planned.cost.seconds_per_sample
    names = [f"{in_words(option.shape.degrees)}, {option.schedule}" for option in planned.alternatives]
    width = max(32, *map(len, names)) + 2
    lines = [f"{'other shapes':<{width}}{'workers':>8}{'step':>10}{'against':>9}{'memory':>11}"]
    for name, option in zip(names, planned.alternatives, strict=True):
        step, ratio = seconds_in_words(option.cost.total_seconds), option.cost.seconds_per_sample / best
        lines.append(f"{name:<{width}}{option.workers:>8}{step:>10}{ratio:>8.2f}x{_bytes(option.cost.peak_bytes):>11}")
    return lines


def schedule_lines(costs: Sequence[ScheduleCost]) -> list[str]:
    """Return the table of each schedule's cost on the plan's degrees; no lines for a pipeline of one rank."""
    lines = [f"{'same degrees by schedule':<37}{'step':>10}{'bubble':>9}{'memory':>11}"] if costs else []
    for one in costs:
        name = f"{one.schedule} x {one.virtual_stages} virtual stages" if one.virtual_stages > 1 else one.schedule
        step, bubble = seconds_in_words(one.step_seconds), f"{one.bubble_share:.1%}"
        lines.append(f"{name:<37}" + (one.refused or f"{step:>10}{bubble:>9}{_bytes(one.peak_bytes):>11}"))
    return lines


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
