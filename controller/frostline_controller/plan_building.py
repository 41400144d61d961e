"""From a placement to a plan: where each unit's state comes from, who leaves, when the switch may be. Pure."""

from frostline_contract.plan import Decision, GenerationId, Placement, Plan, UnitHolders
from frostline_controller.membership import Worker


def sources_of(base: Placement, new: Placement, num_units: int) -> tuple[str, ...]:
    """For each unit the owner in `base` that gives its state: one that stays, where there is one, else one that leaves.

    Owners are taken in turn, so that no replica gives everything. Raises ValueError for a unit without an owner.
    """
    chosen = []
    for unit in range(num_units):
        owners = base.owners(unit)
        if not owners:
            raise ValueError(f"unit {unit} of {num_units} has no owner among {list(base.workers)}")
        keeping = [owner for owner in owners if unit in new.units_of(owner)]
        staying = [owner for owner in owners if owner in new.workers]
        candidates = keeping or staying or owners
        chosen.append(candidates[unit % len(candidates)])
    return tuple(chosen)


def holders_at_switch(base: Plan, participants: tuple[str, ...]) -> tuple[UnitHolders, ...]:
    """For each unit the participants that have its state when `base` ends: its owners there and its buddy."""
    needs = [set(base.needs(worker)) for worker in participants]
    return tuple(
        UnitHolders(participants=tuple(index for index, units in enumerate(needs) if unit in units))
        for unit in range(base.placement.stage_bounds[-1])
    )


def switching_plan(
    generation: GenerationId,
    base: Plan,
    lineage: int,
    placement: Placement,
    store: Worker,
    numerics: tuple[int, int],
    window: tuple[int, int],
    reason: str,
) -> Plan:
    """A plan that members of `base` switch to by a vote (PROTOCOLS 3).

    store: the worker of the new global rank 0. numerics: freeze point and decision number in force where it starts.
    window: first and last step whose vote may switch.
    """
    freeze_point, decision_number = numerics
    sources = sources_of(base.placement, placement, base.placement.stage_bounds[-1])
    leavers = tuple(worker for worker in base.placement.workers if worker not in placement.workers)
    giver = next((worker for worker in base.placement.workers if worker in placement.workers), base.placement.workers[0])
    return Plan(
        generation=generation,
        base=base.generation,
        lineage=lineage,
        start="continue",
        start_step=-1,
        freeze_point=freeze_point,
        decision_number=decision_number,
        placement=placement,
        switch_from=window[0],
        switch_until=window[1],
        sources=sources,
        leavers=leavers,
        holders=holders_at_switch(base, placement.workers + leavers),
        state_source=giver,
        store_host=store.store_host,
        store_port=store.store_port,
        reason=reason,
    )


def entry_plan(
    generation: GenerationId,
    base: GenerationId | None,
    lineage: int,
    placement: Placement,
    store: Worker,
    decision: Decision | None,
    checkpoint: tuple[str, int] | None,
    reason: str,
) -> Plan:
    """A plan that all its members enter without a vote: from the initial weights, or from a checkpoint (path, step)."""
    path, step = checkpoint or ("", 0)
    return Plan(
        generation=generation,
        base=base,
        lineage=lineage,
        start="checkpoint" if checkpoint else "fresh",
        start_step=step,
        checkpoint_path=path,
        freeze_point=decision.freeze_point if decision else 0,
        decision_number=decision.number if decision else 0,
        placement=placement,
        store_host=store.store_host,
        store_port=store.store_port,
        reason=reason,
    )
