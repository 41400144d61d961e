"""The replica updates of a step: which owner sends the gradients of which units to which buddy, by the plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from frostline_contract.plan import Plan
from frostline_trainer.step.share import pieces_of_replica

KEEP_TAG = 1 << 24
"""First tag of gradients for buddies, one a unit: above the tags of state transfers, which use the same group."""


@dataclass(frozen=True)
class ReplicaUpdate:
    """One message with the reduced gradients of consecutive units of one stage that learn and have the same buddy.

    owner, buddy: global ranks. replica: the owner's replica: 0, or with sharded state the one that owns these pieces. pieces:
    those whose gradients are sent, where state is divided and tiles have pieces; (): the layout is that of the units.
    """

    stage: int
    units: tuple[int, ...]
    owner: int
    buddy: int
    replica: int = 0
    pieces: tuple[int, ...] = ()

    @property
    def tag(self) -> int:
        """The message's tag in the world group; messages of a step between the same members have different tags."""
        return KEEP_TAG + (self.pieces or self.units)[0]


def replica_updates_of(plan: Plan, freeze_point: int) -> list[ReplicaUpdate]:
    """All replica updates of a step, in unit order. A frozen unit has no gradient to send."""
    placement, updates = plan.placement, list[ReplicaUpdate]()
    if plan.buddies and placement.divides and plan.pieces.state_tiles > 1:
        return _updates_by_tile(plan, freeze_point)
    for replica in range(placement.dp_degree if placement.is_sharded else 1) if plan.buddies else ():
        buddies = unit_buddies(plan, replica)
        for stage in range(placement.shape.num_stages):
            updates += _updates_of_stage(plan, buddies, freeze_point, stage, replica)
    return updates


def _updates_by_tile(plan: Plan, freeze_point: int) -> list[ReplicaUpdate]:
    """The updates where tiles have pieces and not all members own them: of each stage one for all pieces with the same owners and
    buddy."""
    table, placement, updates = plan.pieces, plan.placement, list[ReplicaUpdate]()
    for stage in range(placement.shape.num_stages):
        found: dict[tuple[str, str], list[int]] = {}
        for piece in table.of_units(unit for unit in placement.units_of_stage(stage) if unit >= freeze_point):
            if plan.buddies[piece]:
                found.setdefault((",".join(plan.owners(piece)), plan.buddies[piece]), []).append(piece)
        for (_, buddy), pieces in found.items():
            owner = placement.global_ranks[plan.owners(pieces[0])[0]]
            units = tuple(table.units_of(pieces))
            updates.append(ReplicaUpdate(stage, units, owner, placement.global_ranks[buddy], pieces=tuple(pieces)))
    return updates


def _updates_of_stage(plan: Plan, buddies: Sequence[str], freeze_point: int, stage: int, replica: int) -> list[ReplicaUpdate]:
    placement, updates, run = plan.placement, list[ReplicaUpdate](), list[int]()
    owner = placement.shape.first_at(replica, placement.shape.pp_rank_of_stage(stage))
    for unit in placement.units_of_stage(stage):
        if run and buddies[unit] != buddies[run[0]]:
            updates += _update_of(plan, buddies, stage, owner, run, replica)
            run = []
        if unit >= freeze_point:
            run.append(unit)
    return updates + _update_of(plan, buddies, stage, owner, run, replica)


def _update_of(plan: Plan, buddies: Sequence[str], stage: int, owner: int, run: list[int], replica: int) -> list[ReplicaUpdate]:
    if not run or not buddies[run[0]]:
        return []
    return [ReplicaUpdate(stage, tuple(run), owner, plan.placement.global_ranks[buddies[run[0]]], replica)]


def unit_buddies(plan: Plan, replica: int = 0) -> tuple[str, ...]:
    """For each unit the buddy of its pieces that one replica owns, in the form of `Plan.buddies`.

    These pieces must have one buddy, since their gradients are one message and they are updated together. Raises ValueError if
    they have several.
    """
    found, sharded = list[str](), plan.placement.is_sharded
    for unit in range(plan.pieces.num_units if plan.buddies else 0):
        pieces = pieces_of_replica(plan.pieces, unit, replica, plan.placement.shape) if sharded else plan.pieces.of_unit(unit)
        named = {plan.buddies[piece] for piece in pieces}
        if len(named) > 1:
            raise ValueError(f"the pieces of unit {unit} have buddies {sorted(named)}; a unit's pieces have one buddy")
        found.append(named.pop())
    return tuple(found)
