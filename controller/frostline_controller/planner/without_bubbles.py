"""Whether a zero-bubble schedule pays, where `placement.schedule` is auto: judged by running it on paper, with slices and memory.

A split backward costs more than a whole one and a bubble is saved once a step, so nothing is chosen before the costs of split
backwards are measured, nor where the closed form would have to judge. To find an order and run it takes microseconds an
operation, so the few shapes that promise most at best are looked at, until so much has been run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from frostline_contract.schedules import BUILT_IN
from frostline_controller.planner.cuts import PartitionTable, StageCosts
from frostline_controller.planner.leaves import deal_by_speed
from frostline_controller.planner.split_costs import are_measured

if TYPE_CHECKING:
    from frostline_controller.planner.cost import CostModel
    from frostline_controller.planner.search import Candidate

WORTH = 1.03
"""How much faster a step must be on paper: predictions are no better."""
ALIKE = 1.01
"""Within that the schedule that needs the least memory is taken."""
SHAPES = 6
"""With their slices, that are looked at."""
TURNS = 60_000
"""That ranks on paper are asked what they do next, at most; those of a V count six times, since six of its orders are tried."""
OF_A_V = 6
SPLITTING = tuple(name for name, schedule in BUILT_IN.items() if schedule.splits)


def without_bubbles(
    model: "CostModel", candidates: Sequence["Candidate"], best: "Candidate", price: Callable[["Candidate"], float]
) -> tuple["Candidate", str]:
    """The best candidate, with a zero-bubble schedule where that pays; and why, to follow the plan's reason.

    Args:
        candidates: shapes and slices that may be taken, with other schedules.
        best: of them.
        price: costs a candidate on paper; seconds a sample, infinite where memory does not allow it.
    """
    inputs = model.inputs
    if inputs.placement.schedule != "auto" or inputs.quota is not None or not are_measured(inputs):
        return best, ""
    least, left, over = price(best), TURNS, 0
    tried: list[tuple[float, Candidate]] = []
    for near in _promising(model, candidates, least / WORTH)[:SHAPES]:
        for name, virtual in _allowed(near):
            turns = _turns(near, virtual)
            if turns > left:
                over += 1
                continue
            left -= turns
            fresh = _with(near, name, virtual)
            if fresh is not None and (seconds := price(fresh)) < float("inf"):
                tried.append((seconds, fresh))
    not_run = f" ({over} more would take too long to be run on paper)" if over else ""
    if not tried:
        return best, f"; no schedule without bubbles: {over} would take too long to be run on paper" if over else ""
    quickest = min(seconds for seconds, _ in tried)
    chosen = min((one for seconds, one in tried if seconds <= quickest * ALIKE), key=lambda one: one.alternative.cost.peak_bytes)
    figures = f"{_in_words(chosen)} against {_in_words(best)}"
    if quickest * WORTH > least:
        return best, f"; no schedule without bubbles pays: {figures} on paper{not_run}"
    return chosen, f"; without bubbles on paper: {figures}{not_run}"


def _promising(model: "CostModel", candidates: Sequence["Candidate"], limit: float) -> list["Candidate"]:
    """Pipelines that could be so fast if only the ramp, the forwards until the last rank begins, were waiting; the best first.

    Ranks that take turns on a processor have no waits to fill.
    """
    inputs = model.inputs
    found: list[tuple[float, Candidate]] = []
    for one in candidates:
        if one.pp == 1 or one.virtual > 1 or one.workers > (inputs.parallel_slots or one.workers):
            continue
        forward = float(model.compute[-1] - model.backward[-1]) / inputs.speeds[0] / max(1, len(one.slices))
        least = one.table.bottleneck(one.pp) + forward * (one.pp - 1) / (2 * one.pp)
        found.append((least / inputs.samples_of_step(one.dp), one))
    return [one for least, one in sorted(found, key=lambda pair: (pair[0], pair[1].workers, pair[1].pp)) if least < limit]


def _allowed(near: "Candidate") -> list[tuple[str, int]]:
    """(schedule, stages a rank) that the candidate's depth has units for."""
    ways = [(name, 2 if BUILT_IN[name].folded else 1) for name in SPLITTING]
    return [(name, virtual) for name, virtual in ways if near.pp * virtual <= near.table.costs.model.inputs.trainable_units]


def _turns(near: "Candidate", virtual: int) -> int:
    """How often ranks are asked while an order is found: each in every unit of time, of which a step has as many as a rank has
    operations, and those of the ramps."""
    units = 3 * virtual * (near.table.costs.micro_batches * max(1, len(near.slices)) + near.pp)
    return near.pp * units * (OF_A_V if virtual == 2 else 1)


def _with(near: "Candidate", name: str, virtual: int) -> "Candidate | None":
    """The candidate with another schedule, its stages cut anew; None where memory allows none."""
    costs, stages = near.table.costs, near.pp * virtual
    inputs = costs.model.inputs
    way = (costs.micro_batches, deal_by_speed(inputs.reduction_leaves, [1.0] * near.dp), name, virtual, inputs.speeds[0])
    table = PartitionTable(StageCosts(costs.model, *way, slices=max(1, len(near.slices))), stages, near.pp)
    if table.bottleneck(stages) == float("inf"):
        return None
    return replace(near, virtual=virtual, table=table, alternative=None, bounds=table.bounds(stages))


def _in_words(one: "Candidate") -> str:
    cost = one.alternative.cost
    bubble, memory = cost.parts["bubble"] / cost.total_seconds, cost.peak_bytes / (1 << 20)
    name = one.alternative.schedule + (f" in {len(one.slices)} slices" if len(one.slices) > 1 else "")
    return f"pp {one.pp} x dp {one.dp} {name} {cost.total_seconds:.4g} s, bubble {bubble:.0%}, {memory:.0f} MiB"
