"""The costs of one member of a group that shares tensors: what it computes of a block, keeps of it, and exchanges for it.

A block's products are cut over columns and depth, attention and activation functions between them over the columns; norms,
residual sums and dropout of whole rows are computed by each member (COMMON_SECONDS). In each pass two sums of the hidden width
cross the columns; with a depth, two sums of the inner widths and two gathers of the hidden width cross it as well
(`traffic.traffic_in_runs`). Of the activations kept for a block's backward, those of the hidden width stay whole where rows do
(KEPT_HIDDEN), and those of the inner widths are cut by the columns. Activations between stages are sent once a group: each
member sends its part, and the receivers gather.
"""

from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.gathers import with_seconds
from frostline_controller.planner.group_messages import GroupMessages
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.tensor.groups import by_node
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing
from frostline_controller.planner.tensor.traffic import traffic_in_runs

COMMON_SECONDS = 0.01
"""Share of a block's seconds on one worker that each member of a group spends on whole rows. Assumed, not measured: norms,
residual sums and dropout move a few values for each of thousands of multiplications."""
KEPT_HIDDEN = 10 / 34
"""Share of the hidden width in the activations kept for a block's backward: (10 + 24 / t) of 34 bytes a token and unit of width
(arXiv 2205.05198, section 4.1; attention scores apart)."""
KEPT_GATHERED = 4 / 34
"""Part of KEPT_HIDDEN: inputs of column layers. Where members of columns divide samples, they are kept as they were gathered.
(The paper keeps each member's part and gathers again in the backward, which sends more.)"""


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


def cut_unit(unit: UnitProfile, sharing: Sharing, nodes: Nodes, micro_batch_size: int) -> UnitProfile:
    """Return the costs of a learning block on one member of a group, with whole state: its seconds, with the group's exchanges,
    and the activations that the member keeps."""
    between = 1 / sharing.columns if sharing.rows_split else 1.0
    attention = attention_share(unit, micro_batch_size)
    cut = attention / sharing.columns + (1 - attention) / sharing.group_size
    gathered = KEPT_GATHERED if sharing.rows_split else 0.0
    kept = gathered + (KEPT_HIDDEN - gathered) * between + (1 - KEPT_HIDDEN) / sharing.columns
    added = (exchange_seconds(unit.output_bytes, sharing, nodes, is_forward) for is_forward in (True, False))
    found = with_seconds(unit, COMMON_SECONDS * between + (1 - COMMON_SECONDS) * cut, *added)
    return found.model_copy(update={"activation_bytes": round(unit.activation_bytes * kept)})


def attention_share(unit: UnitProfile, micro_batch_size: int) -> float:
    """Return attention's share of a block's multiplications, which columns cut and depth does not.

    It is 4 s h of 24 h^2 + 4 s h a token, for s tokens of width h (`planner.analytic`). A sample's hidden state has s h values
    and a block 12 h^2 weights, so s / 6 h is twice the ratio of their bytes. Where a crossing value is half as wide as a weight
    the share comes out as nearly half of what it is.
    """
    ratio = 2 * unit.output_bytes / micro_batch_size / max(1, unit.parameter_bytes)
    return ratio / (1 + ratio)


def exchange_seconds(hidden_bytes: float, sharing: Sharing, nodes: Nodes, is_forward: bool) -> float:
    """Return the seconds of a block's exchanges within the group in one pass.

    A sum over two members is one call, over more an all-to-all and a gather. The depth is the innermost axis.

    Args:
        hidden_bytes: of a micro-batch's hidden state.
        sharing: columns and depth.
        nodes: the nodes on which the groups lie.
        is_forward: the forward, else the backward.
    """
    moved = traffic_in_runs(sharing.axes, 1, 1, forward=is_forward, backward=not is_forward)
    of_columns, of_depth = (2 if degree == 2 else 4 for degree in (sharing.columns, sharing.depth))
    return nodes.seconds(hidden_bytes * moved.depth, sharing.depth, 1, of_depth + 2) + nodes.seconds(
        hidden_bytes * moved.columns, sharing.columns, sharing.depth, of_columns
    )


def messages_of(nodes: Nodes, size: int) -> GroupMessages:
    """Return the cost of messages between groups of `size` workers, of which each member sends an equal share."""
    return GroupMessages(1 / size, nodes.seconds((size - 1) / size, size, 1), nodes.seconds(0.0, size, 1, 1))
