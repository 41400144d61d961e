"""The costs of a worker of a group that shares everything: its units' seconds and bytes, and its links.

Pipeline, replicas, schedules, freezing, cache and memory are then planned as usual (`planner.search`), with groups in place of
workers.

Differences between a group and a worker. A block's work is cut, except norms, residual sums and dropout of whole rows
(COMMON_SECONDS). Four sums a block and micro-batch cross the columns; with a depth each product has one more exchange in each
pass (`tensor.traffic`). Weights and moments of a block are cut; embedding and head stay whole on each member. Of the activations
kept for a block's backward, those of the hidden width stay whole where rows do (KEPT_HIDDEN). Activations between stages are sent
once a group: each member sends its part, and the receivers gather. A vote's cost is counted over groups.
"""

from dataclasses import replace

from frostline_contract.sharding import NONE
from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.gathers import with_seconds
from frostline_controller.planner.group_messages import GroupMessages
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.tensor.groups import NoGroups, as_one, by_node, form_groups_of_nodes
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing
from frostline_controller.planner.tensor.traffic import BLOCK, traffic

COMMON_SECONDS = 0.01
"""Share of a block's seconds on one worker that each member of a group spends on whole rows. Assumed, not measured: norms,
residual sums and dropout move a few values for each of thousands of multiplications."""
KEPT_HIDDEN = 10 / 34
"""Share of the hidden width in the activations kept for a block's backward: (10 + 24 / t) of 34 bytes a token and unit of width
(arXiv 2205.05198, section 4.1; attention scores apart)."""
KEPT_GATHERED = 4 / 34
"""Part of KEPT_HIDDEN: inputs of column layers. Where members of columns divide samples, they are kept as they were gathered.
(The paper keeps each member's part and gathers again in the backward, which sends more.)"""

CUT_BYTES = ("parameter_bytes", "optimizer_bytes", "still_bytes", "working_bytes", "output_bytes")
"""Fields of a block's profile of which each member has an equal part."""


def grouped(inputs: PlanInputs, sharing: Sharing) -> PlanInputs:
    """Return the planner's inputs with a group in place of each worker, and with state shared out by `sharing`.

    With groups of one and no further sharing the inputs are returned unchanged.

    Raises:
        NoGroups: the members cannot form such groups.
    """
    if sharing == Sharing(shard=inputs.placement.shard):
        return inputs
    size, nodes, found = sharing.group_size, nodes_of(inputs), with_members_grouped(inputs, sharing)
    if size == 1:
        return found
    return replace(
        found,
        units=tuple(
            cut_unit(unit, sharing, nodes) if 0 < number < inputs.num_units - 1 else _whole_unit(unit, size)
            for number, unit in enumerate(inputs.units)
        ),
        messages=messages_of(nodes, size, 1.0),
        parallel_slots=inputs.parallel_slots // size if inputs.parallel_slots is not None else None,
    )


def with_members_grouped(inputs: PlanInputs, sharing: Sharing) -> PlanInputs:
    """Return the planner's inputs with a group in place of each worker, with state shared out, and with the costs of a worker.

    Where state is shared out it is in ranges enough for all replicas, as a new run may have it.

    Raises:
        NoGroups: the members cannot form such groups.
    """
    size, nodes = sharing.group_size, nodes_of(inputs)
    least = -(-inputs.placement.min_workers // size)
    section = inputs.placement.model_copy(update={"shard": sharing.shard, "min_workers": least, "tp_degree": 1})
    found = replace(
        inputs,
        placement=section,
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
    unplaced = [replace(member, global_rank=-1) for member in inputs.members]
    return replace(found, members=tuple(map(as_one, form_groups_of_nodes(unplaced, size))), current=None)


def nodes_of(inputs: PlanInputs) -> Nodes:
    """Return the nodes of the groups: as large as the members' smallest node, with the links that workers measured."""
    near, far = inputs.near_link or inputs.link, inputs.link
    return Nodes(
        devices=min(map(len, by_node(inputs.members))),
        within=near.reduce_bandwidth_bytes_per_second,
        between=far.reduce_bandwidth_bytes_per_second,
        within_call=near.reduce_latency_seconds,
        between_call=far.reduce_latency_seconds,
    )


def cut_unit(unit: UnitProfile, sharing: Sharing, nodes: Nodes) -> UnitProfile:
    """Return the costs of a block on one member of a group: seconds with the group's exchanges, bytes of the member's part."""
    size = sharing.group_size
    between = 1.0 if sharing.has_whole_rows else 1 / size
    seconds = COMMON_SECONDS * between + (1 - COMMON_SECONDS) / size
    gathered = KEPT_GATHERED if sharing.depth == 1 else 0.0
    kept = gathered + (KEPT_HIDDEN - gathered) * between + (1 - KEPT_HIDDEN) / size
    moved = exchange_seconds(unit.output_bytes, sharing, nodes)
    return with_seconds(unit, seconds, moved).model_copy(
        update={
            **{name: round(getattr(unit, name) / size) for name in CUT_BYTES},
            "activation_bytes": round(unit.activation_bytes * kept),
        }
    )


def exchange_seconds(hidden_bytes: float, sharing: Sharing, nodes: Nodes) -> float:
    """Return the seconds of a block's exchanges within the group in a forward; those of a backward take as long.

    hidden_bytes: of a micro-batch's hidden state. The depth is the innermost axis, since it carries three times as much.
    """
    moved = traffic(sharing.axes, 1, 1, BLOCK, backward=False)
    whole_sums = 2 if sharing.columns == 2 else 4  # two a pass; of more than two members an all-to-all and a gather
    column_calls = whole_sums if sharing.depth == 1 else len(BLOCK)
    return nodes.seconds(hidden_bytes * moved.depth, sharing.depth, 1, len(BLOCK)) + nodes.seconds(
        hidden_bytes * moved.columns, sharing.columns, sharing.depth, column_calls
    )


def _whole_unit(unit: UnitProfile, size: int) -> UnitProfile:
    """Return the costs of embedding or head, which every member computes and keeps whole, with a member's part of the output."""
    return unit.model_copy(update={"output_bytes": round(unit.output_bytes / size)})


def messages_of(nodes: Nodes, size: int, sent: float) -> GroupMessages:
    """Return the cost of messages between groups of `size` workers. sent: of a member, for each byte of `output_bytes`."""
    return GroupMessages(sent, nodes.seconds(sent * (size - 1), size, 1), nodes.seconds(0.0, size, 1, 1))
