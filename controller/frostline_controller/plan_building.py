"""From a placement to a plan: where each unit's state comes from, who keeps copies, who leaves, when the switch may be. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from frostline_contract.plan import GenerationId, Placement, Plan, UnitHolders
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.recovery.facts import GoOn

NOBODY = ""


def buddies_of(placement: Placement, domains: Mapping[str, str], held: Sequence[Collection[str]] = ()) -> tuple[str, ...]:
    """For each unit the member that keeps a copy of it; "" where its owners are in two failure domains, or no member is in
    another than theirs.

    domains: failure domain by worker id; empty: nobody keeps anything. held: for each unit who has its state now. The units of
    a stage have one buddy: the member that keeps the fewest units so far, then the one that has the most of the stage already,
    then the next in global rank.
    """
    buddies = [NOBODY] * placement.stage_bounds[-1]
    load: Counter[str] = Counter()
    workers, global_ranks = placement.workers, placement.global_ranks
    for stage in range(placement.shape.num_stages):
        units = placement.units_of_stage(stage)
        if not units or not domains:
            continue
        owners = placement.owners(units[0])
        at = {domains.get(owner) for owner in owners}
        if len(at) > 1:
            continue
        elsewhere = [worker for worker in workers if domains.get(worker) not in at]
        if not elsewhere:
            continue
        have = Counter(worker for unit in units for worker in held[unit]) if held else Counter[str]()
        place = global_ranks[owners[0]]

        def preference(worker: str, have: Counter[str] = have, place: int = place) -> tuple[int, int, int]:
            return load[worker], -have[worker], (global_ranks[worker] - place) % len(workers)

        buddy = min(elsewhere, key=preference)
        load[buddy] += len(units)
        for unit in units:
            buddies[unit] = buddy
    return tuple(buddies)


def uncovered_of(placement: Placement, domains: Mapping[str, str], buddies: Sequence[str]) -> tuple[int, ...]:
    """The units that one failure domain's end would take: no buddy, and all owners in one domain (or domains are unknown)."""
    alone = {
        unit
        for units, owners in zip(placement.units_by_pp_rank, placement.members_by_pp_rank, strict=True)
        if len({domains.get(owner) for owner in owners}) < 2
        for unit in units
    }
    return tuple(unit for unit, buddy in enumerate(buddies) if not buddy and unit in alone)


def sources_of(base: Placement, new: Placement, num_units: int) -> tuple[str, ...]:
    """For each unit the owner in `base` that gives its state: one that stays, where there is one, else one that leaves.

    Owners are taken in turn, so that no replica gives everything. Raises ValueError for a unit without an owner.
    """
    chosen = []
    for unit in range(num_units):
        owners = base.owners(unit)
        if not owners:
            raise ValueError(f"unit {unit} of {num_units} has no owner among {list(base.workers)}")
        keeping = [owner for owner in owners if new.holds(owner, unit)]
        staying = [owner for owner in owners if owner in new.global_ranks]
        candidates = keeping or staying or owners
        chosen.append(candidates[unit % len(candidates)])
    return tuple(chosen)


def holders_at_switch(base: Plan, participants: Sequence[str]) -> list[list[int]]:
    """For each unit the indices of the participants that have its state when `base` ends: its owners there and its buddy."""
    holders: list[list[int]] = [[] for _ in range(base.placement.stage_bounds[-1])]
    for index, worker in enumerate(participants):
        for unit in base.needs(worker):
            holders[unit].append(index)
    return holders


def switching_plan(draft: PlanDraft, *, base: Plan, window: tuple[int, int]) -> Plan:
    """A plan that members of `base` switch to by a vote (docs/protocols.md 3.1).

    Args:
        draft: in force is what its window names.
        base: the plan that runs.
        window: first and last step whose vote may switch.
    """
    placement, domains = draft.placement, draft.domains
    sources = sources_of(base.placement, placement, base.placement.stage_bounds[-1])
    leavers = tuple(worker for worker in base.placement.workers if worker not in placement.global_ranks)
    participants = placement.workers + leavers
    holders = holders_at_switch(base, participants)
    buddies = buddies_of(placement, domains, [[participants[index] for index in unit] for unit in holders])
    giver = next((worker for worker in base.placement.workers if worker in placement.global_ranks), base.placement.workers[0])
    return Plan(
        **draft.fields(),
        base=base.generation,
        start="continue",
        start_step=-1,
        switch_from=window[0],
        switch_until=window[1],
        sources=sources,
        leavers=leavers,
        holders=tuple(UnitHolders(participants=tuple(unit)) for unit in holders),
        state_source=giver,
        buddies=buddies,
        uncovered=uncovered_of(placement, domains, buddies),
        run_epoch=base.run_epoch,
    )


def entry_plan(draft: PlanDraft, *, base: GenerationId | None, checkpoint: tuple[str, int] | None, run_epoch: int) -> Plan:
    """A plan that all its members enter without a vote.

    Args:
        draft: in force is what is at the step after the checkpoint's.
        base: the generation that is over; None: none has run.
        checkpoint: path and step; None: the plan starts from the initial weights.
        run_epoch: that the plan is of, or begins.
    """
    placement, domains = draft.placement, draft.domains
    path, step = checkpoint or ("", 0)
    buddies = buddies_of(placement, domains)
    return Plan(
        **draft.fields(),
        base=base,
        start="checkpoint" if checkpoint else "fresh",
        start_step=step,
        checkpoint_path=path,
        buddies=buddies,
        uncovered=uncovered_of(placement, domains, buddies),
        run_epoch=run_epoch,
    )


def survivors_plan(draft: PlanDraft, *, base: Plan, found: GoOn) -> Plan:
    """A plan from what is left of `base` after a failure: every unit from one state (docs/protocols.md 4.4).

    Holders that the placement leaves out take part as leavers where nobody else has a unit.

    Args:
        draft: in force is what is at the step after the state's.
        base: the plan whose generation failed.
        found: that state and who has it.
    """
    placement, domains = draft.placement, draft.domains
    leavers = _needed_leavers(placement, found.holders)
    participants = placement.workers + leavers
    places = {worker: place for place, worker in enumerate(participants)}
    holding = [sorted(places[worker] for worker in set(workers) if worker in places) for workers in found.holders]
    holders = [[participants[place] for place in unit] for unit in holding]
    buddies = buddies_of(placement, domains, found.holders)
    return Plan(
        **draft.fields(),
        base=base.generation,
        start="survivors",
        start_step=found.state.step,
        state_lineage=found.state.lineage,
        state_generation=found.state.generation,
        vote=found.vote,
        sources=tuple(_giver(unit, workers, placement) for unit, workers in enumerate(holders)),
        holders=tuple(UnitHolders(participants=tuple(unit)) for unit in holding),
        leavers=leavers,
        state_source=_state_source(found, holders),
        buddies=buddies,
        uncovered=uncovered_of(placement, domains, buddies),
        run_epoch=base.run_epoch,
    )


def _needed_leavers(placement: Placement, holders: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Few holders, taken greedily, so that each unit has a participant that has it; none that the others make needless."""
    orphaned = [set(workers) for workers in holders if placement.global_ranks.keys().isdisjoint(workers)]
    lacking, leavers = orphaned, list[str]()
    while lacking:
        count = Counter(worker for workers in lacking for worker in workers)
        most = min(count, key=lambda worker: (-count[worker], worker))
        leavers.append(most)
        lacking = [workers for workers in lacking if most not in workers]
    for earlier in list(leavers):  # what was taken first may be covered by what was taken for other units later
        others = set(leavers) - {earlier}
        if not any(others.isdisjoint(workers) for workers in orphaned):
            leavers.remove(earlier)
    return tuple(leavers)


def _giver(unit: int, holders: Sequence[str], placement: Placement) -> str:
    """One that keeps the unit, where there is one; taken in turn."""
    keeping = [worker for worker in holders if placement.holds(worker, unit)] or list(holders)
    return keeping[unit % len(keeping)]


def _state_source(found: GoOn, holders: Sequence[Sequence[str]]) -> str:
    """The answer's own, where it takes part, else the participant that has the most."""
    count = Counter(worker for workers in holders for worker in workers)
    return found.state_source if found.state_source in count else min(count, key=lambda worker: (-count[worker], worker))
