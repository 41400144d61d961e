"""The choice of a zero-bubble schedule, where `placement.schedule` is auto, by simulated steps, with slices and memory.

A split backward costs more than a whole one and a bubble is saved once a step, so no such schedule is chosen before the costs of
split backwards are measured, nor where only the closed form could judge. To find an order and run it takes microseconds an
operation, so only the few shapes with the least lower bounds are tried, up to a limit of operations.

Workers with a quota of a processor do operations that are short beside its period at full speed after a wait: such a pipeline has
next to no bubble to save, and its simulated times are the least accurate ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from frostline_contract.schedules import BUILT_IN
from frostline_controller.planner.candidates import Candidate
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.cuts import PartitionTable, StageCosts
from frostline_controller.planner.leaves import deal_evenly
from frostline_controller.planner.simulated_step import can_be_simulated
from frostline_controller.planner.split_costs import are_measured

WORTH = 1.03
"""Least speed-up of a simulated step; predictions are no more accurate."""
ALIKE = 1.01
"""Ratio of times within which the schedule with the least memory is chosen."""
LONG = 5.0
"""Least seconds of a rank's forward, in periods of its quota. Work after a wait gains up to half a period over work in a row:
a tenth at this length. Measured with periods of 10 ms: with forwards of some milliseconds nothing was quicker than 1F1B."""
SHAPES = 6
"""Most shapes, with their slices, that are tried."""
TURNS = 60_000
"""Most selections of a rank's next operation in simulation; those of a V count six times, since six of its orders are tried."""
OF_A_V = 6
SPLITTING = tuple(name for name, schedule in BUILT_IN.items() if schedule.splits)


def without_bubbles(
    model: CostModel, candidates: Sequence[Candidate], best: Candidate, price: Callable[[Candidate], float]
) -> tuple[Candidate, str]:
    """Return the best candidate, with a zero-bubble schedule where that pays, and words to be appended to the plan's reason.

    Args:
        model: the cost model.
        candidates: shapes and slices that may be taken, with other schedules.
        best: the best of them.
        price: returns a candidate's simulated seconds a sample; infinite where memory does not allow it.
    """
    inputs = model.inputs
    gathers = inputs.gathers_at_use  # a split backward gathers its weights twice, which is not priced
    if inputs.placement.schedule != "auto" or gathers or not are_measured(inputs):
        return best, ""
    least, left, over = price(best), TURNS, 0
    tried: list[tuple[float, Candidate]] = []
    for near in _promising(model, candidates, least / WORTH)[:SHAPES]:
        for name, virtual in _allowed(near):
            turns, costs = _turns(near, virtual), near.table.costs
            if turns > left or not can_be_simulated(inputs, near.pp * virtual, costs.micro_batches, near.slices):
                over += 1
                continue
            left -= turns
            fresh = _with(near, name, virtual)
            if fresh is not None and (seconds := price(fresh)) < float("inf"):
                tried.append((seconds, fresh))
    not_run = f" ({over} more would take too long to be simulated)" if over else ""
    if not tried:
        return best, f"; no schedule without bubbles: {over} would take too long to be simulated" if over else ""
    quickest = min(seconds for seconds, _ in tried)
    chosen = min((one for seconds, one in tried if seconds <= quickest * ALIKE), key=lambda one: one.alternative.cost.peak_bytes)
    figures = f"{_in_words(chosen)} against {_in_words(best)}"
    if quickest * WORTH > least:
        return best, f"; no schedule without bubbles pays: {figures} simulated{not_run}"
    return chosen, f"; without bubbles, simulated: {figures}{not_run}"


def _promising(model: CostModel, candidates: Sequence[Candidate], limit: float) -> list[Candidate]:
    """Return the pipelines with a lower bound below `limit`, the best first.

    The lower bound counts only the ramp, the forwards until the last rank begins, as waiting. Pipelines whose ranks take turns on
    a processor are left out, since they have no waits to fill; so are those whose operations are short beside a quota's period.
    """
    inputs = model.inputs
    period = inputs.quota.period_seconds if inputs.quota is not None else 0.0
    found: list[tuple[float, Candidate]] = []
    for one in candidates:
        if one.pp == 1 or one.virtual > 1 or one.workers > (inputs.parallel_slots or one.workers):
            continue
        forward = float(model.compute[-1] - model.backward[-1]) / inputs.speeds[0] / max(1, len(one.slices))
        if forward / one.pp < period * LONG:
            continue
        least = one.table.bottleneck(one.pp) + forward * (one.pp - 1) / (2 * one.pp)
        found.append((least / inputs.samples_of_step(one.dp), one))
    return [one for least, one in sorted(found, key=lambda pair: (pair[0], pair[1].workers, pair[1].pp)) if least < limit]


def _allowed(near: Candidate) -> list[tuple[str, int]]:
    """Return the (schedule, stages a rank) for which the units suffice at the candidate's depth."""
    ways = [(name, 2 if BUILT_IN[name].folded else 1) for name in SPLITTING]
    return [(name, virtual) for name, virtual in ways if near.pp * virtual <= near.table.costs.model.inputs.trainable_units]


def _turns(near: Candidate, virtual: int) -> int:
    """Return the number of selections while an order is found: one for each rank in every unit of time.

    A step has as many units of time as a rank has operations, and those of the ramps.
    """
    units = 3 * virtual * (near.table.costs.micro_batches * max(1, len(near.slices)) + near.pp)
    return near.pp * units * (OF_A_V if virtual == 2 else 1)


def _with(near: Candidate, name: str, virtual: int) -> Candidate | None:
    """Return the candidate with another schedule and newly cut stages; None where no cut fits the memory."""
    costs, stages = near.table.costs, near.pp * virtual
    inputs = costs.model.inputs
    way = (costs.micro_batches, deal_evenly(inputs.reduction_leaves, near.dp), name, virtual, inputs.speeds[0])
    table = PartitionTable(StageCosts(costs.model, *way, slices=max(1, len(near.slices))), stages, near.pp)
    if table.bottleneck(stages) == float("inf"):
        return None
    return replace(near, virtual=virtual, table=table, alternative=None, bounds=table.bounds(stages))


def _in_words(one: Candidate) -> str:
    cost = one.alternative.cost
    bubble, memory = cost.parts["bubble"] / cost.total_seconds, cost.peak_bytes / (1 << 20)
    name = one.alternative.schedule + (f" in {len(one.slices)} slices" if len(one.slices) > 1 else "")
    return f"pp {one.pp} x dp {one.dp} {name} {cost.total_seconds:.4g} s, bubble {bubble:.0%}, {memory:.0f} MiB"
