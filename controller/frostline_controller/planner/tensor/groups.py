"""A group of workers that share a block, as one worker to plan for: its units' seconds and bytes, its links, its place.

Pipeline, replicas, schedules, freezing, cache and memory are then planned as ever (`planner.search`), over groups in place of
workers.

What a group changes. A block's work is cut, but for norms, residual sums and dropout of whole rows (COMMON_SECONDS). Four sums a
block and micro-batch cross the columns; with a depth each product has an exchange more in each pass (`tensor.traffic`). Weights
and moments of a block are cut; embedding and head stay whole on each member. Of what a block keeps for its backward, the part
of the hidden width stays whole where rows do (KEPT_HIDDEN). Activations between stages are sent once a group: a member sends its
part, and the receivers gather. A vote is counted over groups.
"""

from collections.abc import Sequence
from dataclasses import replace

from frostline_contract.sharding import NONE, STEP
from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_controller.planner.gathers import with_seconds
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import USE, Sharing
from frostline_controller.planner.tensor.traffic import BLOCK, traffic

COMMON_SECONDS = 0.01
"""Of a block's seconds on one worker, what each member of a group computes of whole rows. Assumed, not measured: norms, residual
sums and dropout move a few values for each of thousands of multiplications."""
KEPT_HIDDEN = 10 / 34
"""Of what a block keeps for its backward, the part that is as wide as the hidden state: (10 + 24 / t) of 34 bytes a token and
unit of width (arXiv 2205.05198, section 4.1; attention scores apart)."""

CUT_BYTES = ("parameter_bytes", "optimizer_bytes", "still_bytes", "working_bytes", "output_bytes")
"""Of a block, what each member has an equal part of."""


class NoGroups(ValueError):
    """The members do not make up a group of that size; the text says why."""


def grouped(inputs: PlanInputs, sharing: Sharing) -> PlanInputs:
    """The planner's inputs with a group in place of each worker, and state shared out as `sharing` says.

    With a group of one and nothing shared the inputs come back as they are. Raises NoGroups.
    """
    if sharing == Sharing(shard=inputs.placement.shard):
        return inputs
    size, nodes = sharing.group_size, nodes_of(inputs)
    least = -(-inputs.placement.min_workers // size)
    section = inputs.placement.model_copy(
        update={"shard": NONE if sharing.shard == NONE else STEP, "min_workers": least, "tp_degree": 1}
    )
    found = replace(
        inputs,
        placement=section,
        gathers_at_use=sharing.shard == USE,
        state_ranges=inputs.state_ranges if sharing.shard == NONE else max(inputs.state_ranges, inputs.reduction_leaves),
    )
    if size == 1:
        return found
    if sharing.depth == 1 and size > nodes.devices:
        raise NoGroups(
            f"{size} columns exceed the {nodes.devices} workers of a node; their sums would cross nodes in every block"
        )
    slots = inputs.parallel_slots
    if slots is not None and slots < size:
        raise NoGroups(f"a group of {size} workers computes at once, and {slots} can")
    near = inputs.near_link or inputs.link
    return replace(
        found,
        units=tuple(
            cut_unit(unit, sharing, nodes) if 0 < number < inputs.num_units - 1 else _whole_unit(unit, size)
            for number, unit in enumerate(inputs.units)
        ),
        members=tuple(_as_one(group) for group in groups_of(inputs.members, size)),
        link=_sent_once(inputs.link, near, size),
        near_link=_sent_once(inputs.near_link, near, size) if inputs.near_link is not None else None,
        parallel_slots=slots // size if slots is not None else None,
        current=None,
    )


def nodes_of(inputs: PlanInputs) -> Nodes:
    """The nodes that groups lie in: as large as the smallest that is used, with the links that workers measured."""
    near, far = inputs.near_link or inputs.link, inputs.link
    return Nodes(
        devices=min(map(len, _by_node(inputs.members).values())),
        within=near.reduce_bandwidth_bytes_per_second,
        between=far.reduce_bandwidth_bytes_per_second,
        within_call=near.reduce_latency_seconds,
        between_call=far.reduce_latency_seconds,
    )


def groups_of(members: Sequence[MemberInfo], size: int) -> list[list[MemberInfo]]:
    """Members in groups: of one node each where a node has room for a group, else of whole nodes. The others are spare.

    Raises NoGroups.
    """
    by_node = _by_node(members)
    smallest = min(map(len, by_node.values()))
    if size <= smallest:
        places = [sorted(node, key=lambda member: -member.speed) for node in by_node.values()]
    elif size % smallest == 0 and len(by_node) * smallest >= size:
        places = [[member for node in by_node.values() for member in node[:smallest]]]
    else:
        raise NoGroups(f"groups of {size} are no whole nodes of {smallest} workers")
    return [node[at : at + size] for node in places for at in range(0, len(node) - size + 1, size)]


def _by_node(members: Sequence[MemberInfo]) -> dict[str, list[MemberInfo]]:
    """Members by the machine that they share, or the failure domain where machines are not known; one that has neither is
    alone.
    """
    found: dict[str, list[MemberInfo]] = {}
    for member in members:
        found.setdefault(member.machine or member.failure_domain or f"alone/{member.worker_id}", []).append(member)
    return found


def _as_one(group: Sequence[MemberInfo]) -> MemberInfo:
    """As slow as the slowest member, with the room of the one that has least."""
    known = [member.memory_bytes for member in group if member.memory_bytes > 0]
    return replace(
        group[0],
        memory_bytes=min(known, default=0),
        global_rank=-1,
        speed=min(member.speed for member in group),
    )


def cut_unit(unit: UnitProfile, sharing: Sharing, nodes: Nodes) -> UnitProfile:
    """A block on one member of a group: seconds with the group's exchanges, bytes of its own."""
    size = sharing.group_size
    between = 1.0 if sharing.has_whole_rows else 1 / size
    seconds = COMMON_SECONDS * between + (1 - COMMON_SECONDS) / size
    kept = KEPT_HIDDEN * between + (1 - KEPT_HIDDEN) / size
    moved = exchange_seconds(unit.output_bytes, sharing, nodes)
    return with_seconds(unit, seconds, moved).model_copy(
        update={
            **{name: round(getattr(unit, name) / size) for name in CUT_BYTES},
            "activation_bytes": round(unit.activation_bytes * kept),
        }
    )


def exchange_seconds(hidden_bytes: float, sharing: Sharing, nodes: Nodes) -> float:
    """Seconds that a block's forward exchanges within the group, for a micro-batch's hidden state of so many bytes; a backward
    takes as long. The depth is innermost: it carries three times as much.
    """
    moved = traffic(sharing.axes, 1, 1, BLOCK, backward=False)
    whole_sums = 2 if sharing.columns == 2 else 4  # two a pass; of more than two members an all-to-all and a gather
    column_calls = whole_sums if sharing.depth == 1 else len(BLOCK)
    return nodes.seconds(hidden_bytes * moved.depth, sharing.depth, 1, len(BLOCK)) + nodes.seconds(
        hidden_bytes * moved.columns, sharing.columns, sharing.depth, column_calls
    )


def _whole_unit(unit: UnitProfile, size: int) -> UnitProfile:
    """Embedding and head, which every member computes and keeps whole; its part of what crosses to the next unit."""
    return unit.model_copy(update={"output_bytes": round(unit.output_bytes / size)})


def _sent_once(link: LinkProfile, near: LinkProfile, size: int) -> LinkProfile:
    """A link as a member's part of an activation sees it: sent, and gathered with the others' parts by those who receive it."""
    gathered = (size - 1) / near.bandwidth_bytes_per_second
    return link.model_copy(
        update={
            "latency_seconds": link.latency_seconds + near.reduce_latency_seconds,
            "bandwidth_bytes_per_second": 1 / (1 / link.bandwidth_bytes_per_second + gathered),
        }
    )
