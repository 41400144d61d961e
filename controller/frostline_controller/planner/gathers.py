"""What it takes to gather weights at each use, where replicas share out weights too (ZeRO-3, arXiv 1910.02054; FSDP, 2304.11277).

Of a unit's weights W each of r replicas has a part. The forward and the backward of each micro-batch gather the others' parts,
(r - 1) / r of W each, and let go of them; nothing is taken to overlap. Sums of gradients go once a step, as ever: with the fixed
tree's order a replica's gradients are whole until then.
"""

from dataclasses import replace

from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import PlanInputs

GATHERED_UNITS = 2
"""Units whose whole weights a replica holds at once: the one that computes, and the one that is gathered meanwhile."""


def with_gathers(inputs: PlanInputs, replicas: int) -> PlanInputs:
    """The inputs with each unit's gathers in its seconds, and what they bring in its memory; of one replica as they are."""
    if replicas == 1:
        return inputs
    link = inputs.link

    def gathering(unit: UnitProfile) -> UnitProfile:
        received = unit.parameter_bytes * (replicas - 1) / replicas
        seconds = link.reduce_latency_seconds + received / link.reduce_bandwidth_bytes_per_second
        return with_seconds(unit, 1.0, seconds).model_copy(
            update={"working_bytes": unit.working_bytes + GATHERED_UNITS * unit.parameter_bytes}
        )

    return replace(inputs, units=tuple(map(gathering, inputs.units)))


def with_seconds(unit: UnitProfile, share: float, added: float) -> UnitProfile:
    """A unit whose forward and backward each take a share of their seconds, and so much longer; of what is added each cell has an
    equal part."""
    update: dict[str, object] = {}
    for name in ("forward_seconds", "backward_seconds"):
        update[name] = getattr(unit, name) * share + added
        cells = getattr(unit, f"cell_{name}")
        update[f"cell_{name}"] = tuple(seconds * share + added / len(cells) for seconds in cells)
    return unit.model_copy(update=update)
