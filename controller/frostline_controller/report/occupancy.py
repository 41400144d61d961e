"""The units of each worker at each step: the data behind the slider of report.html."""

from typing import Any

from frostline_contract.mesh import in_words
from frostline_contract.plan import Placement, Plan
from frostline_controller.report.charts import thin
from frostline_controller.report.data import RunData
from frostline_controller.report.tables import TIMES


def occupancy(run: RunData) -> dict[str, Any]:
    """Return the data that the page's script draws, as plain JSON.

    Its keys: `units`, names by index; `workers`, {id, label} in order of first appearance; `plans`, the placements that computed
    surviving steps, with the worker of each stage of each replica; `segments`, [first step, last step, index of the plan or -1,
    freeze point] in order, together all surviving steps; `readings`, [step, loss, samples a second, hits, hits + misses],
    thinned; `events`, those that changed numerics or placement.
    """
    workers: dict[str, int] = {}
    plans: list[dict[str, Any]] = []
    index_of: dict[str, int] = {}
    segments: list[list[int]] = []
    for record in run.records:
        if record.generation not in index_of:
            plan = run.plan_of(record.generation)
            index_of[record.generation] = len(plans) if plan else -1
            if plan:
                plans.append(_drawn(plan, workers))
        state = [index_of[record.generation], record.freeze_point]
        if segments and segments[-1][2:] == state and segments[-1][1] + 1 == record.step:
            segments[-1][1] = record.step
        else:
            segments.append([record.step, record.step, *state])
    return {
        "units": unit_names(run.num_units),
        "workers": [{"id": worker_id, "label": f"W{index}"} for worker_id, index in workers.items()],
        "plans": plans,
        "segments": segments,
        "readings": [_reading(group) for group in thin(run.records, 800)],
        "events": [
            {"step": event.step, "kind": event.kind, "reason": event.reason}
            for event in run.events
            if event.kind in ("freeze", "unfreeze", "reshape", "join", "leave", "failure", "guard", "cache")
        ],
    }


def unit_names(num_units: int) -> list[str]:
    """Return the units' names by index: the embedding, the blocks counted from 1, the head."""
    if num_units < 2:
        return ["model"] * num_units
    return ["embedding", *(f"block {i}" for i in range(1, num_units - 1)), "head"]


def _drawn(plan: Plan, workers: dict[str, int]) -> dict[str, Any]:
    placement, shape = plan.placement, plan.placement.shape
    for worker_id in placement.workers:
        workers.setdefault(worker_id, len(workers))
    return {
        "generation": str(plan.generation),
        "shape": in_words(placement.degrees, TIMES),
        "replicas": [_row(placement, dp_rank, workers) for dp_rank in range(placement.dp_degree)],
        "pp_ranks": [shape.pp_rank_of_stage(stage) for stage in range(shape.num_stages)],
        "bounds": list(placement.stage_bounds),
        "leaves": list(placement.leaf_bounds),
        "schedule": placement.schedule,
        "cache": placement.use_cache,
        "reason": plan.reason,
    }


def _row(placement: Placement, dp_rank: int, workers: dict[str, int]) -> list[int]:
    """Return, for each stage of one replica, the index of the worker that holds the stage."""
    shape = placement.shape
    owners = [shape.first_at(dp_rank, shape.pp_rank_of_stage(stage)) for stage in range(shape.num_stages)]
    return [workers[worker_id] for worker_id in placement.members_at(owners)]


def _reading(group: list[Any]) -> list[float | None]:
    last = group[-1]
    asked = sum(record.cache_hits + record.cache_misses for record in group)
    loss = last.loss if last.loss == last.loss and abs(last.loss) != float("inf") else None
    return [last.step, loss, last.samples_per_second, sum(record.cache_hits for record in group), asked]
