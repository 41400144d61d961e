"""The cost of gathering weights at each use (`placement.shard: use`; ZeRO-3, arXiv 1910.02054; FSDP, 2304.11277).

Each of r replicas has a part of the weights W of a unit that learns. The forward and the backward of each micro-batch gather the
other replicas' parts, (r - 1) / r of W each time, and free them afterwards; no gather overlaps with computing. Uses of one unit
right behind each other share a gather, which is not counted here. Frozen units are whole on each replica, and so is what never
learns, below adapters. Gradients are summed once a step, as without gathers: the fixed tree's order needs a replica's whole
gradients until then.
"""

from dataclasses import replace

from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import PlanInputs

GATHERED_UNITS = 2
"""Times that a replica holds a unit's whole weights at once, beside the part that it sends: during a gather over gloo in the
messages and in gloo's own copy of them, afterwards in the messages and in the unit."""


def with_gathers(inputs: PlanInputs, replicas: int) -> PlanInputs:
    """Return the inputs with the gathers of units that learn added to their seconds and memory; unchanged for one replica."""
    if replicas == 1:
        return inputs
    link = inputs.link

    def gathering(unit: UnitProfile) -> UnitProfile:
        received = unit.gradient_bytes * (replicas - 1) / replicas
        seconds = link.reduce_latency_seconds + received / link.reduce_bandwidth_bytes_per_second
        return with_seconds(unit, 1.0, seconds, seconds).model_copy(
            update={"working_bytes": unit.working_bytes + round((GATHERED_UNITS + 1 / replicas) * unit.gradient_bytes)}
        )

    learning = map(gathering, inputs.units[inputs.freeze_point :])
    return replace(inputs, units=(*inputs.units[: inputs.freeze_point], *learning))


def with_seconds(unit: UnitProfile, share: float, forward: float, backward: float) -> UnitProfile:
    """Return the unit with other times, those of its cells included.

    Args:
        unit: the unit.
        share: of its forward and backward seconds that is left.
        forward, backward: seconds added to each pass, divided equally over its cells.
    """
    update: dict[str, object] = {}
    for name, added in (("forward_seconds", forward), ("backward_seconds", backward)):
        update[name] = getattr(unit, name) * share + added
        cells = getattr(unit, f"cell_{name}")
        update[f"cell_{name}"] = tuple(seconds * share + added / len(cells) for seconds in cells)
    return unit.model_copy(update=update)
