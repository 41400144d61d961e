"""A group of workers that share a stage's tiles as the engine builds it (docs/adr/0018), as one worker to plan for.

`tensor.member_costs` is for groups that share everything; here is what `placement.tp_degree` gives. A block that learns
computes an equal part of its tiles on each member and sums over the group twice in each pass. Frozen blocks are computed whole by
each member, and so are embedding and head, unless tiles cut the vocabulary. A member holds an equal part of the weights of what
learns in tiles, and of the moments of all that is in tiles. A tensor that crosses stages is sent once a group: each member sends
its share along its own line, and the receiving group gathers, unless members divide a micro-batch's samples
(`placement.tensor_rows`): then the share is what the receiver computes on. Where replicas share out their state, a member holds
its replica's ranges of the tiles that it computes: the share of these costs that a lone worker in its place would hold of its own
(`CostModel.stage_bytes`).
"""

from collections.abc import Sequence
from dataclasses import replace

from frostline_contract.job.section import AUTO
from frostline_contract.statistics import UnitProfile
from frostline_contract.tensor_rows import SPLIT, WHOLE, TensorRows
from frostline_controller.planner.gathers import with_seconds
from frostline_controller.planner.group_messages import GroupMessages
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.tensor.member_costs import (
    COMMON_SECONDS,
    CUT_BYTES,
    cut_unit,
    messages_of,
    nodes_of,
    with_members_grouped,
)
from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.sharing import Sharing

STATE_BYTES = ("parameter_bytes", "optimizer_bytes", "still_bytes")
"""Fields of CUT_BYTES that are weights or state."""
ADAPTERS_CUT = 0.5
"""Share of an adapter's elements that tiles cut: the matrix at the inner width, of the two beside a square layer. Beside a wider
one more of them are cut."""


def rows_of_group(inputs: PlanInputs, degree: int) -> TensorRows:
    """Return how groups of `degree` workers have samples: as the job asks; left open, in parts wherever each member can have one.

    Parts take less memory, and less time for what every member would compute, for as many bytes sent.
    """
    asked = inputs.placement.tensor_rows
    if asked == AUTO:
        return SPLIT if 1 < degree <= inputs.row_tiles else WHOLE
    return asked


def in_groups_as_built(inputs: PlanInputs, degree: int, at_home: bool) -> PlanInputs:
    """Return the inputs with the costs of units and messages on one member of a group; members stay as they are.

    Args:
        degree: workers of a group; 1 returns the inputs unchanged.
        at_home: each group lies within one node (`tensor.groups`).
    """
    if degree == 1:
        return inputs
    nodes = replace(nodes_of(inputs), devices=degree if at_home else 1)
    splits_rows = rows_of_group(inputs, degree) == SPLIT
    sharing = Sharing(columns=degree, rows_split=splits_rows)
    shares = [inputs.freeze_point <= number and 0 < number < inputs.num_units - 1 for number in range(inputs.num_units)]
    units = tuple(
        _member_of(unit, sharing, nodes)
        if own
        else _with_state(unit, degree if 0 < number < inputs.num_units - 1 else 1, ("optimizer_bytes",))
        for number, (unit, own) in enumerate(zip(inputs.units, shares, strict=True))
    )
    units = _with_ends(units, inputs, sharing, nodes)
    messages = messages_of(nodes, degree, 1 / degree)
    if splits_rows:
        messages = GroupMessages(messages.sent, 0.0, 0.0)
    return replace(
        inputs,
        units=units,
        messages=messages,
        parallel_slots=max(1, inputs.parallel_slots // degree) if inputs.parallel_slots is not None else None,
    )


def grouped_as_built(inputs: PlanInputs, sharing: Sharing) -> PlanInputs:
    """Return the planner's inputs with groups of `sharing.columns` in place of workers, at the costs of a member in a run.

    Raises:
        NoGroups: the members cannot form such groups.
    """
    found = with_members_grouped(inputs, sharing)
    section = found.placement.model_copy(update={"tensor_rows": SPLIT if sharing.rows_split else WHOLE})
    return in_groups_as_built(replace(found, placement=section), sharing.columns, at_home=True)


def _member_of(unit: UnitProfile, sharing: Sharing, nodes: Nodes) -> UnitProfile:
    """Return the costs of a learning block on one member: of what `cut_unit` divides, only state is; outputs stay whole."""
    found = cut_unit(unit, sharing, nodes).model_copy(update={name: getattr(unit, name) for name in CUT_BYTES})
    return _with_state(found, sharing.columns, STATE_BYTES)


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


def _with_ends(units: tuple[UnitProfile, ...], inputs: PlanInputs, sharing: Sharing, nodes: Nodes) -> tuple[UnitProfile, ...]:
    """Return the units with the costs of embedding and head on one member where tiles cut the vocabulary.

    The group sums one hidden state of each micro-batch: of a lookup in the forward, of the logits' input in the backward. All of
    a unit's state counts as the vocabulary's; positions and norms are small beside it.
    """
    degree, last = sharing.group_size, len(units) - 1
    embedding, head = inputs.tiled_ends
    moved = nodes.seconds(2 * units[min(1, last)].output_bytes * (degree - 1) / degree, degree, 1, 1 if degree == 2 else 2)
    found = list(units)
    if embedding:
        fields = STATE_BYTES if inputs.freeze_point == 0 else ("optimizer_bytes",)
        found[0] = _cut(found[0], fields, degree)
    if embedding and inputs.freeze_point == 0:
        found[0] = with_seconds(found[0], 1.0, moved / 2)
    if head:
        fields = ("activation_bytes", "working_bytes", *STATE_BYTES)
        found[last] = with_seconds(_cut(found[last], fields, degree), COMMON_SECONDS + (1 - COMMON_SECONDS) / degree, moved / 2)
    return tuple(found)


def _cut(unit: UnitProfile, fields: Sequence[str], degree: int) -> UnitProfile:
    """Return the unit with a member's part of these fields."""
    return unit.model_copy(update={name: round(getattr(unit, name) / degree) for name in fields})
