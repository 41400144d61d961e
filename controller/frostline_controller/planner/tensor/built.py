"""A group of workers that share a stage's tiles as the engine builds it (docs/adr/0018), as one worker to plan for.

It is what `placement.tp_degree` and `tp_depth` give. A block that learns computes an equal part of its tiles on each member
and sums over the group in each pass (`tensor.member_costs`). Frozen blocks are computed whole by each member, and so are
embedding and head, unless tiles cut the vocabulary. A member holds an equal part of the weights of what learns in tiles, and of
the moments of all that is in tiles. A tensor that crosses stages is sent once a group: each member sends its share along its own
line, and the receiving group gathers, unless members divide a micro-batch's samples (`placement.tensor_rows`): then the share is
what the receiver computes on. Where replicas share out their state, a member holds its replica's ranges of the tiles that it
computes: the share of these costs that a lone worker in its place would hold of its own (`CostModel.stage_bytes`).
"""

from collections.abc import Sequence
from dataclasses import replace

from frostline_contract.job.section import AUTO
from frostline_contract.sharding import NONE
from frostline_contract.statistics import UnitProfile
from frostline_contract.tensor_rows import SPLIT, WHOLE, TensorRows
from frostline_controller.planner.gathers import with_seconds
from frostline_controller.planner.group_messages import GroupMessages
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.tensor.groups import NoGroups, as_one, form_groups_of_nodes, ranks_at_home
from frostline_controller.planner.tensor.member_costs import COMMON_SECONDS, cut_unit, messages_of, nodes_of
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing
from frostline_controller.planner.tensor.traffic import Axes

STATE_BYTES = ("parameter_bytes", "optimizer_bytes", "still_bytes")
"""Fields of a block's profile that are weights or state, of which each member has an equal part."""
ADAPTERS_CUT = 0.5
"""Share of an adapter's elements that tiles cut: the matrix at the inner width, of the two beside a square layer. Beside a wider
one more of them are cut."""


def rows_of_group(inputs: PlanInputs, axes: Axes) -> TensorRows:
    """Return how groups of these axes have samples: as the job asks; left open, in parts wherever each member can have one.

    Parts take less memory, and less time for what every member would compute, for as many bytes sent. With a depth all members
    have all samples.
    """
    asked = inputs.placement.tensor_rows
    if asked == AUTO:
        return SPLIT if 1 < axes.columns <= inputs.row_tiles and axes.depth == 1 else WHOLE
    return asked


def in_groups_as_built(inputs: PlanInputs, axes: Axes, at_home: int) -> PlanInputs:
    """Return the inputs with the costs of units and messages on one member of a group; members stay as they are.

    Args:
        inputs: with the costs of a worker that is alone.
        axes: columns and depth of a group; groups of one worker leave the inputs unchanged.
        at_home: consecutive members of each group that lie in one node (`tensor.groups.ranks_at_home`).
    """
    if axes.size == 1:
        return inputs
    nodes = replace(nodes_of(inputs), devices=at_home)
    splits_rows = rows_of_group(inputs, axes) == SPLIT
    sharing = Sharing(columns=axes.columns, depth=axes.depth, rows_split=splits_rows)
    shares = [inputs.freeze_point <= number and 0 < number < inputs.num_units - 1 for number in range(inputs.num_units)]
    units = tuple(
        _with_state(cut_unit(unit, sharing, nodes, inputs.micro_batch_size), axes.size, STATE_BYTES)
        if own
        else _with_state(unit, axes.size if 0 < number < inputs.num_units - 1 else 1, ("optimizer_bytes",))
        for number, (unit, own) in enumerate(zip(inputs.units, shares, strict=True))
    )
    if axes.depth == 1:  # tiles of the vocabulary and of the hidden width are never in one run
        units = _with_ends(units, inputs, axes.columns, nodes)
    messages = messages_of(nodes, axes.size)
    if splits_rows:
        messages = GroupMessages(messages.sent, 0.0, 0.0)
    return replace(
        inputs,
        units=units,
        messages=messages,
        parallel_slots=max(1, inputs.parallel_slots // axes.size) if inputs.parallel_slots is not None else None,
    )


def as_groups(inputs: PlanInputs, sharing: Sharing) -> PlanInputs:
    """Return the planner's inputs for a way of sharing, with groups in place of workers, at the costs of a member in a run.

    Where state is shared out it is in ranges enough for all replicas, as a new run may have it; so are tiles. The inputs' own way
    returns them unchanged.

    Raises:
        NoGroups: the members cannot form such groups.
    """
    if sharing == Sharing(shard=inputs.placement.shard):
        return inputs
    axes, nodes = sharing.axes, nodes_of(inputs)
    update = {
        "shard": sharing.shard,
        "min_workers": -(-inputs.placement.min_workers // axes.size),
        "tp_degree": 1,
        "tp_depth": 1,
        "tensor_rows": SPLIT if sharing.rows_split else WHOLE,
    }
    found = replace(
        inputs,
        placement=inputs.placement.model_copy(update=update),
        state_ranges=inputs.state_ranges if sharing.shard == NONE else max(inputs.state_ranges, inputs.reduction_leaves),
    )
    if axes.size == 1:
        return found
    if axes.depth == 1 and axes.size > nodes.devices:
        raise NoGroups(
            f"{axes.size} columns exceed the {nodes.devices} workers of a node; their sums would cross nodes in every block"
        )
    slots = inputs.parallel_slots
    if slots is not None and slots < axes.size:
        raise NoGroups(f"a group of {axes.size} workers computes at once, and {slots} can")
    groups = form_groups_of_nodes([replace(member, global_rank=-1) for member in inputs.members], axes.size)
    priced = in_groups_as_built(found, axes, ranks_at_home(groups))
    return replace(priced, members=tuple(map(as_one, groups)), current=None, group_size=axes.size)


def _with_state(unit: UnitProfile, members: int, fields: Sequence[str]) -> UnitProfile:
    """Return the costs of a block with these fields on one of the members that own its tiles.

    What never learns below adapters is cut as the block is; of the adapters' own elements some are whole on each member.
    """
    if members == 1:
        return unit
    cut = ADAPTERS_CUT if unit.still_bytes else 1.0
    learning = 1 - cut + cut / members
    still = unit.still_bytes / members
    found = {
        "parameter_bytes": still + (unit.parameter_bytes - unit.still_bytes) * learning,
        "optimizer_bytes": unit.optimizer_bytes * learning,
        "still_bytes": still,
    }
    return unit.model_copy(update={name: round(found[name]) for name in fields})


def _with_ends(units: tuple[UnitProfile, ...], inputs: PlanInputs, degree: int, nodes: Nodes) -> tuple[UnitProfile, ...]:
    """Return the units with the costs of embedding and head on one member of `degree` where tiles cut the vocabulary.

    The group sums one hidden state of each micro-batch: of a lookup in the forward, of the logits' input in the backward. All of
    a unit's state counts as the vocabulary's; positions and norms are small beside it.
    """
    last, (embedding, head) = len(units) - 1, inputs.tiled_ends
    moved = nodes.seconds(2 * units[min(1, last)].output_bytes * (degree - 1) / degree, degree, 1, 1 if degree == 2 else 2)
    found = list(units)
    if embedding:
        fields = STATE_BYTES if inputs.freeze_point == 0 else ("optimizer_bytes",)
        found[0] = _cut(found[0], fields, degree)
    if embedding and inputs.freeze_point == 0:
        found[0] = with_seconds(found[0], 1.0, moved / 2, moved / 2)
    if head:
        fields = ("activation_bytes", "working_bytes", *STATE_BYTES)
        share = COMMON_SECONDS + (1 - COMMON_SECONDS) / degree
        found[last] = with_seconds(_cut(found[last], fields, degree), share, moved / 2, moved / 2)
    return tuple(found)


def _cut(unit: UnitProfile, fields: Sequence[str], degree: int) -> UnitProfile:
    """Return the unit with a member's part of these fields."""
    return unit.model_copy(update={name: round(getattr(unit, name) / degree) for name in fields})
