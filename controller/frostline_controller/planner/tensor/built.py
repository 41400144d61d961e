"""A group of workers that share a stage's tiles as the engine builds it (docs/adr/0018), as one worker to plan for.

`tensor.groups` plans for groups that share everything; here is what `placement.tp_degree` gives. A block that learns computes an
equal part of its tiles on each member and sums over the group twice in each pass. Embedding, head and frozen blocks are computed
whole by each member, which holds the state of the whole stage and sends whole activations along its own line. Once a step a group
collects the gradients of its tiles.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_controller.planner.gathers import with_seconds
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_controller.planner.tensor.groups import COMMON_SECONDS, KEPT_HIDDEN, exchange_seconds
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing


def in_groups_as_built(inputs: PlanInputs, degree: int, at_home: bool) -> PlanInputs:
    """Return the inputs with the units' costs on one member of a group; members stay as they are.

    Args:
        degree: workers of a group; 1 returns the inputs unchanged.
        at_home: each group lies within one machine.
    """
    if degree == 1:
        return inputs
    nodes = _nodes(inputs, degree, at_home)
    sharing = Sharing(columns=degree)
    shares = [inputs.freeze_point <= number and 0 < number < inputs.num_units - 1 for number in range(inputs.num_units)]
    units = tuple(_shared(unit, sharing, nodes) if own else unit for unit, own in zip(inputs.units, shares, strict=True))
    learning = [unit.parameter_bytes - unit.still_bytes for unit in inputs.units[inputs.freeze_point :]]
    collected = [unit.parameter_bytes - unit.still_bytes for unit, own in zip(inputs.units, shares, strict=True) if own]
    seconds = sum(nodes.seconds(size * (degree - 1) / degree, degree, 1, 1) for size in collected)
    return replace(
        inputs,
        units=units,
        optimizer_seconds_per_byte=inputs.optimizer_seconds_per_byte + seconds / max(1, sum(learning)),
        parallel_slots=max(1, inputs.parallel_slots // degree) if inputs.parallel_slots is not None else None,
    )


def lie_at_home(groups: Iterable[Sequence[MemberInfo]]) -> bool:
    """Whether the members of each group share a machine, or a failure domain where machines are not known."""
    return all(len({member.machine or member.failure_domain for member in group}) == 1 for group in groups if group)


def _nodes(inputs: PlanInputs, degree: int, at_home: bool) -> Nodes:
    """Return equal nodes that hold a whole group each, or one member each."""
    near, far = inputs.near_link or inputs.link, inputs.link
    return Nodes(degree if at_home else 1, *_speeds(near, far), near.reduce_latency_seconds, far.reduce_latency_seconds)


def _speeds(near: LinkProfile, far: LinkProfile) -> tuple[float, float]:
    return near.reduce_bandwidth_bytes_per_second, far.reduce_bandwidth_bytes_per_second


def _shared(unit: UnitProfile, sharing: Sharing, nodes: Nodes) -> UnitProfile:
    """Return the costs of a learning block on one member: seconds with the group's sums, and the kept part of its activations."""
    seconds = COMMON_SECONDS + (1 - COMMON_SECONDS) / sharing.columns
    kept = KEPT_HIDDEN + (1 - KEPT_HIDDEN) / sharing.columns
    cut = with_seconds(unit, seconds, exchange_seconds(unit.output_bytes, sharing, nodes))
    return cut.model_copy(update={"activation_bytes": round(unit.activation_bytes * kept)})
