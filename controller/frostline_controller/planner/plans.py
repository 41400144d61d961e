"""The plan of a placement: the source of each piece's state, the buddies, the leavers, and the window of the switch. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set

from frostline_contract.pieces import Pieces
from frostline_contract.plan import NOBODY, GenerationId, PieceHolders, Placement, Plan
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.recovery.facts import GoOn

NO_WORKER = ""


def buddies_of(
    placement: Placement, domains: Mapping[str, str], table: Pieces, held: Sequence[Collection[str]] = ()
) -> tuple[str, ...]:
    """Return each piece's buddy; "" where the piece has none.

    A piece has no buddy where its owners are in two failure domains, or where no member is in another domain than they are. The
    pieces of a stage with the same owners have one buddy, since they are updated together: the member that keeps the fewest
    pieces so far, then the one that has the most of these pieces already, then the next in global rank.

    Args:
        placement: the plan's.
        domains: failure domain by worker id; empty: no piece has a buddy.
        table: the run's pieces.
        held: for each piece the workers that have its state now.
    """
    buddies = [NO_WORKER] * table.count
    load: Counter[str] = Counter()
    workers, global_ranks = placement.workers, placement.global_ranks
    for pieces in _kept_together(placement, table) if domains else ():
        owners = placement.owners_of(table, pieces[0])
        at = {domains.get(owner) for owner in owners}
        if len(at) > 1:
            continue
        elsewhere = [worker for worker in workers if domains.get(worker) not in at]
        if not elsewhere:
            continue
        have = Counter(worker for piece in pieces for worker in held[piece]) if held else Counter[str]()
        place = global_ranks[owners[0]]

        def preference(worker: str, have: Counter[str] = have, place: int = place) -> tuple[int, int, int]:
            return load[worker], -have[worker], (global_ranks[worker] - place) % len(workers)

        buddy = min(elsewhere, key=preference)
        load[buddy] += len(pieces)
        for piece in pieces:
            buddies[piece] = buddy
    return tuple(buddies)


def _kept_together(placement: Placement, table: Pieces) -> list[list[int]]:
    """Return the pieces of each stage as lists of pieces with the same owners, in the order of their first piece."""
    found = list[list[int]]()
    for stage in range(placement.shape.num_stages):
        by_owners: dict[tuple[str, ...], list[int]] = {}
        for piece in table.of_units(placement.units_of_stage(stage)):
            by_owners.setdefault(tuple(placement.owners_of(table, piece)) if placement.divides else (), []).append(piece)
        found += by_owners.values()
    return found


def uncovered_of(placement: Placement, domains: Mapping[str, str], buddies: Sequence[str], table: Pieces) -> tuple[int, ...]:
    """Return the pieces that the loss of one failure domain would lose: no buddy, and all owners in one (or unknown) domain.

    Args:
        placement: the placement.
        domains: failure domain of each worker.
        buddies: the buddy of each piece, "" where it has none; empty: no piece has one, and none is called uncovered.
        table: the run's pieces.
    """
    found = list[int]()
    for pieces in _kept_together(placement, table) if buddies else ():
        if len({domains.get(owner) for owner in placement.owners_of(table, pieces[0])}) < 2:
            found += [piece for piece in pieces if not buddies[piece]]
    return tuple(sorted(found))


def sources_of(base: Placement, new: Placement, table: Pieces) -> tuple[str, ...]:
    """Return each piece's source: an owner in `base` that keeps the unit, else an owner that stays, else one that leaves.

    Owners take turns, so that no replica sends everything.

    Raises:
        ValueError: a unit has no owner.
    """
    chosen = list[str]()
    for unit in range(table.num_units):
        members = base.owners(unit)
        if not members:
            raise ValueError(f"unit {unit} of {table.num_units} has no owner among {list(base.workers)}")
        givers = _givers(members, new, unit)
        for piece in table.of_unit(unit):
            own = _givers(base.owners_of(table, piece), new, unit) if base.divides else givers
            chosen.append(own[piece % len(own)])
    return tuple(chosen)


def _givers(owners: list[str], new: Placement, unit: int) -> list[str]:
    """Return the owners of a piece that should send it: those that keep the unit in `new`, else those that stay, else all."""
    keeping = [owner for owner in owners if new.holds(owner, unit)]
    return keeping or [owner for owner in owners if owner in new.global_ranks] or owners


def holders_at_switch(base: Plan, participants: Sequence[str]) -> list[list[int]]:
    """Return for each piece the indices of its holders when `base` ends: the participants that are its owners or its buddy."""
    holders: list[list[int]] = [[] for _ in range(base.pieces.count)]
    for index, worker in enumerate(participants):
        for piece in base.needs(worker):
            holders[piece].append(index)
    return holders


def switching_plan(draft: PlanDraft, *, base: Plan, window: tuple[int, int]) -> Plan:
    """Return a plan to which members of `base` switch by a vote (docs/protocols.md 3.1).

    Args:
        draft: the new plan's draft, with the freeze point in force at its window's steps.
        base: the plan that runs.
        window: first and last step whose vote may switch.
    """
    placement, domains, table = draft.placement, draft.domains, draft.pieces
    assert table == base.pieces, f"the draft has {table}, the plan that runs {base.pieces}"
    sources = sources_of(base.placement, placement, table)
    leavers = tuple(worker for worker in base.placement.workers if worker not in placement.global_ranks)
    participants = placement.workers + leavers
    holders = holders_at_switch(base, participants)
    held = [[participants[index] for index in piece] for piece in holders]
    buddies = buddies_of(placement, domains, table, held)
    giver = next((worker for worker in base.placement.workers if worker in placement.global_ranks), base.placement.workers[0])
    return Plan(
        **draft.fields(),
        base=base.generation,
        start="continue",
        start_step=-1,
        switch_from=window[0],
        switch_until=window[1],
        source_indices=_indices(sources, participants),
        leavers=leavers,
        holders=tuple(PieceHolders(participants=tuple(piece)) for piece in holders),
        state_source=giver,
        buddy_indices=_indices(buddies, participants),
        uncovered=uncovered_of(placement, domains, buddies, table),
        run_epoch=base.run_epoch,
    )


def entry_plan(draft: PlanDraft, *, base: GenerationId | None, checkpoint: tuple[str, int] | None, run_epoch: int) -> Plan:
    """Return a plan that all its members enter without a vote.

    Args:
        draft: the new plan's draft, with the freeze point in force at the step after the checkpoint's.
        base: the generation that is over; None: none has run.
        checkpoint: path and step; None: the plan starts from the initial weights.
        run_epoch: the plan's run epoch, which it may begin.
    """
    placement, domains, table = draft.placement, draft.domains, draft.pieces
    path, step = checkpoint or ("", 0)
    buddies = buddies_of(placement, domains, table)
    return Plan(
        **draft.fields(),
        base=base,
        start="checkpoint" if checkpoint else "fresh",
        start_step=step,
        checkpoint_path=path,
        buddy_indices=_indices(buddies, placement.workers),
        uncovered=uncovered_of(placement, domains, buddies, table),
        run_epoch=run_epoch,
    )


def survivors_plan(draft: PlanDraft, *, base: Plan, found: GoOn) -> Plan:
    """Return a plan that goes on from the survivors of `base` after a failure, every piece at one state (docs/protocols.md 4.4).

    Holders outside the placement take part as leavers where no other participant has a piece, or none in another failure domain:
    a lost node's workers do not end at the same moment, and workers that have reported may end before the plan's first vote.

    Args:
        draft: the new plan's draft, with the freeze point in force at the step after the state's.
        base: the plan whose generation failed.
        found: the state to go on from, and its holders.
    """
    placement, domains, table = draft.placement, draft.domains, draft.pieces
    assert table == base.pieces, f"the draft has {table}, the plan that failed {base.pieces}"
    leavers = _needed_leavers(placement, found.holders, domains)
    participants = placement.workers + leavers
    places = {worker: place for place, worker in enumerate(participants)}
    holding = [sorted(places[worker] for worker in set(workers) if worker in places) for workers in found.holders]
    holders = [[participants[place] for place in piece] for piece in holding]
    sources = [_giver(piece, base.pieces.unit_of(piece), workers, placement) for piece, workers in enumerate(holders)]
    buddies = buddies_of(placement, domains, table, found.holders)
    return Plan(
        **draft.fields(),
        base=base.generation,
        start="survivors",
        start_step=found.state.step,
        state_lineage=found.state.lineage,
        state_generation=found.state.generation,
        vote=found.vote,
        source_indices=_indices(sources, participants),
        holders=tuple(PieceHolders(participants=tuple(piece)) for piece in holding),
        leavers=leavers,
        state_source=_state_source(found, holders),
        buddy_indices=_indices(buddies, participants),
        uncovered=uncovered_of(placement, domains, buddies, table),
        run_epoch=base.run_epoch,
    )


def _needed_leavers(placement: Placement, holders: Sequence[Sequence[str]], domains: Mapping[str, str]) -> tuple[str, ...]:
    """Return few holders outside the placement so that participants hold each piece, in two failure domains if possible."""
    givers = _few_of_each([set(workers) for workers in holders if placement.global_ranks.keys().isdisjoint(workers)])
    there = placement.global_ranks.keys() | set(givers)
    elsewhere = list[set[str]]()
    for workers in holders:
        at = {domains.get(worker) for worker in workers if worker in there}
        if len(at) == 1:
            elsewhere.append({worker for worker in workers if domains.get(worker) not in at})
    leavers = givers + _few_of_each([workers for workers in elsewhere if workers])
    for earlier in leavers:  # a holder in a second domain, chosen later, may stand for an earlier one too
        others = placement.global_ranks.keys() | set(leavers) - {earlier}
        if all(_is_held_as_well(set(workers), others, domains) for workers in holders):
            leavers = tuple(worker for worker in leavers if worker != earlier)
    return leavers


def _is_held_as_well(holders: set[str], participants: Set[str], domains: Mapping[str, str]) -> bool:
    """Return whether a piece has a holder among the participants, and holders in two domains where it has any."""
    here = {domains.get(worker) for worker in holders & participants}
    return len(here) > 1 or (len(here) == 1 and len({domains.get(worker) for worker in holders}) == 1)


def _few_of_each(choices: Sequence[set[str]]) -> tuple[str, ...]:
    """Return workers, chosen greedily, so that each set of `choices` has one of them; none of them is redundant."""
    lacking, taken = list(choices), list[str]()
    while lacking:
        count = Counter(worker for workers in lacking for worker in workers)
        most = min(count, key=lambda worker: (-count[worker], worker))
        taken.append(most)
        lacking = [workers for workers in lacking if most not in workers]
    for earlier in list(taken):  # workers chosen later may cover all sets of one chosen earlier
        others = set(taken) - {earlier}
        if not any(others.isdisjoint(workers) for workers in choices):
            taken.remove(earlier)
    return tuple(taken)


def _giver(piece: int, unit: int, holders: Sequence[str], placement: Placement) -> str:
    """Return the piece's source: a holder that keeps the unit in the placement, else any holder; holders take turns by piece."""
    keeping = [worker for worker in holders if placement.holds(worker, unit)] or list(holders)
    return keeping[piece % len(keeping)]


def _indices(workers: Sequence[str], participants: Sequence[str]) -> tuple[int, ...]:
    """Return the workers' indices in `participants`; NOBODY for no worker."""
    places = {worker: place for place, worker in enumerate(participants)} | {NO_WORKER: NOBODY}
    return tuple(places[worker] for worker in workers)


def _state_source(found: GoOn, holders: Sequence[Sequence[str]]) -> str:
    """Return the source of the run state: the one found if it has a piece here, else the participant that has the most pieces."""
    count = Counter(worker for workers in holders for worker in workers)
    return found.state_source if found.state_source in count else min(count, key=lambda worker: (-count[worker], worker))
