"""Moves between generations: a worker stops, reports, receives a plan, and obtains its state."""

from collections.abc import Iterator

from frostline_contract.plan import CONTINUE, SURVIVORS
from tests.model.invariants import check_cause
from tests.model.training import can_stop, keep_only, remember, switches_of
from tests.model.universe import Move, Universe
from tests.model.world import (
    ENTERING,
    FINISHED,
    JOINING,
    LEAVING,
    NONE,
    RUNNING,
    SPARE,
    STOPPED,
    VOTING,
    Order,
    Report,
    Vote,
    Worker,
    World,
    name,
    order_of,
    worker_name,
)

IN_GROUPS = (RUNNING, VOTING, ENTERING, LEAVING, FINISHED)


def entering_moves(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Yield the moves of a worker that concern another generation than the one in which it trains."""
    who = worker_name(index)
    if worker.mode in IN_GROUPS and can_stop(universe, world, index, worker):
        title = universe.title(worker.plan)
        stopped = stop(worker)._replace(expired=_fates(universe, world, worker))
        yield f"{who}: a collective of {title} fails, it drops its groups", universe.put(world, index, stopped), False
    if world.side[index] == 0:
        yield from _report(universe, world, index, worker)
        for plan in universe.durable(world):
            yield from _receive(universe, world, index, worker, plan)
    if worker.mode == JOINING:
        yield from _learn_of_switch(universe, world, index, worker)
    if worker.mode == ENTERING and not worker.settled:
        yield from _settle(universe, world, index, worker)
    elif worker.mode == ENTERING:
        yield from _fetch(universe, world, index, worker)
    elif worker.mode == LEAVING and not worker.settled:
        yield from _settle(universe, world, index, worker)
    elif worker.mode == LEAVING:
        members = [universe.worker(world, member) for member in universe.view(worker.plan).members]
        if all(member.plan == worker.plan and member.mode in (RUNNING, VOTING, FINISHED) for member in members):
            spare = worker._replace(mode=SPARE, plan=NONE, fresh=False, settled=False)
            yield f"{who} has given its state away: a spare that keeps it", universe.put(world, index, spare), False


def stop(worker: Worker) -> Worker:
    """Drop all groups. Prepared gradients are kept."""
    return worker._replace(mode=STOPPED, plan=NONE, ready=NONE, fresh=False, settled=False)


def _fates(universe: Universe, world: World, worker: Worker) -> tuple[Order, ...]:
    """Return the plans to which no vote will switch, as far as the worker knows.

    These include the plans that its ballot does not name, since it votes no more.
    """
    if worker.mode not in (RUNNING, VOTING):
        return worker.expired
    followers = [(plan, universe.view(plan).order) for plan in switches_of(universe, world, worker.plan)]
    unnamed = [
        order
        for plan, order in followers
        if order <= worker.newest_received and plan != worker.ready and order not in worker.expired
    ]
    return (*worker.expired, *unnamed)


# ---- reporting


def _report(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Report by itself where the worker's groups are gone, or answer a fence. A report is also a promise."""
    leader = universe.leader(world)
    who = worker_name(index)
    current = universe.view(leader.current)
    is_sign = index in current.members or (leader.prepared != NONE and worker.ran == leader.prepared)
    unreported = worker.mode == STOPPED and leader.reports[index] is None and worker.newest_received >= current.order
    if unreported and (leader.recovering or is_sign):
        yield f"{who} reports", _delivered(universe, world, index, worker), False
    newest = universe.newest(leader)
    asked = {*current.participants}
    if leader.prepared != NONE:
        asked |= {*universe.view(leader.prepared).participants}
    if worker.mode == STOPPED:
        asked.add(index)  # it reported itself out of an older generation, and is answered with a fence
    report = leader.reports[index]
    if leader.recovering and index in asked and worker.mode != SPARE and (report is None or report.newest_received < newest):
        newest_received = max(worker.newest_received, newest)
        fenced = stop(worker)._replace(expired=_fates(universe, world, worker)) if worker.mode != STOPPED else worker
        fenced = fenced._replace(newest_received=newest_received)
        after = _delivered(universe, world, index, fenced)
        if "promise" in universe.off:
            after = universe.put(
                after, index, worker if worker.mode == JOINING else fenced._replace(newest_received=worker.newest_received)
            )
        yield f"{who} is fenced from {name(newest)} and reports", after, False
    elif leader.recovering and index in asked and worker.mode == SPARE and (report is None or report.newest_received < newest):
        fenced = worker._replace(newest_received=max(worker.newest_received, newest))
        yield f"{who}, a spare, is fenced from {name(newest)} and reports", _delivered(universe, world, index, fenced), False


def report_of(worker: Worker) -> Report:
    known = (worker.newest_received, worker.ran, worker.pieces, worker.run, worker.prepared)
    return Report(*known, worker.seen, worker.switched, worker.expired)


def _delivered(universe: Universe, world: World, index: int, worker: Worker) -> World:
    leader = universe.leader(world)
    reports = list(leader.reports)
    reports[index] = report_of(worker)
    check_cause(universe, world, f"{worker_name(index)} reports")
    changed = leader._replace(reports=tuple(reports), recovering=True, silent=leader.silent - {index})
    return universe.with_leader(universe.put(world, index, worker), changed)


# ---- hearing


def _receive(universe: Universe, world: World, index: int, worker: Worker, plan: int) -> Iterator[Move]:
    """Receive an announcement, in time or late, with its effect on this worker."""
    view = universe.view(plan)
    if worker.ran != NONE and view.order <= universe.view(worker.ran).order:
        return
    if not universe.bridge.takes(index, worker.newest_received, plan):
        return
    who, title = worker_name(index), name(view.order)
    if view.kind == CONTINUE:
        if index in view.participants and worker.mode == SPARE and index in view.members:
            joining = worker._replace(mode=JOINING, plan=plan, newest_received=view.order)
            yield f"{who} hears {title} and prepares to join", universe.put(world, index, joining), False
        elif (
            worker.mode in (RUNNING, VOTING)
            and universe.view(worker.plan).order == view.base
            and _joiners_ready(universe, world, plan)
        ):
            newest_received = worker._replace(newest_received=view.order, withdrawn=False)
            yield f"{who} hears {title} and that its participants are ready", universe.put(world, index, newest_received), False
        return
    if worker.plan != NONE and universe.view(worker.plan).order >= view.order:
        return
    if index not in view.participants:
        if worker.mode == SPARE and worker.newest_received >= view.order:
            return
        spare = stop(worker)._replace(mode=SPARE, newest_received=view.order)
        yield f"{who} hears {title}, which does not name it: a spare", universe.put(world, index, spare), False
        return
    mode = ENTERING if index in view.members else LEAVING
    entering = stop(worker)._replace(mode=mode, plan=plan, newest_received=view.order, withdrawn=False)
    yield f"{who} hears {title} and enters", universe.put(world, index, entering), False


def _joiners_ready(universe: Universe, world: World, plan: int) -> bool:
    view = universe.view(plan)
    base = next(other for other in universe.durable(world) if universe.view(other).order == view.base)
    joiners = [member for member in view.members if member not in universe.view(base).members]
    return all(
        universe.worker(world, joiner).mode == JOINING and universe.worker(world, joiner).plan == plan for joiner in joiners
    )


def _learn_of_switch(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Learn from the store of the prepared groups that the base's members have switched."""
    for member in universe.view(worker.plan).participants:
        peer = universe.worker(world, member)
        if (
            member != index
            and peer.plan == worker.plan
            and peer.mode in (ENTERING, LEAVING)
            and world.side[member] == world.side[index]
        ):
            entering = worker._replace(mode=ENTERING, ran=worker.plan, settled=True, fresh=True)
            label = f"{worker_name(index)} learns of the switch to {universe.title(worker.plan)}"
            yield label, universe.put(world, index, entering), False
            return


# ---- bringing state in place


def _formed(universe: Universe, world: World, index: int, worker: Worker) -> bool:
    """Whether the groups are formed: every participant has come, and all reach each other."""
    for peer in universe.view(worker.plan).participants:
        other = universe.worker(world, peer)
        if other.plan != worker.plan or other.mode not in IN_GROUPS or world.side[peer] != world.side[index]:
            return False
    return True


def _settle(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Prepare the state after the groups are formed: drop pieces that the plan does not name the worker for, and commit its vote
    late."""
    if not _formed(universe, world, index, worker):
        return
    view, bridge, who = universe.view(worker.plan), universe.bridge, worker_name(index)
    title = name(view.order)
    if view.kind != SURVIVORS:
        pieces = tuple(view.start if piece in view.needs[index] else NONE for piece in range(len(worker.pieces)))
        there = worker._replace(
            pieces=pieces, run=view.start, ran=worker.plan, mode=RUNNING, settled=True, fresh=True, prepared=NONE
        )
        yield f"{who} restores {title}'s state and runs", universe.put(world, index, there), False
        return
    kept = tuple(piece for piece, holders in enumerate(view.holders) if index in holders)
    pieces = worker.pieces if "holders-only" in universe.off else keep_only(worker.pieces, kept)
    target, vote = view.plan.start_tag, view.plan.vote
    late = [
        piece
        for piece, state in enumerate(pieces)
        if state != NONE and not bridge.matches(state, target) and _comes_late(universe, index, worker, piece) != NONE
    ]
    ready = worker._replace(pieces=pieces, settled=True, fresh=True)
    if not late:
        run = next((state for state in pieces if state != NONE and bridge.matches(state, target)), NONE)
        there = ready._replace(run=run, prepared=NONE, ran=worker.plan)
        yield f"{who} keeps what {title} names it for", universe.put(world, index, there), False
        return
    assert vote is not None and worker.run != NONE
    run = bridge.comes_to(worker.prepared, worker.run, vote)
    new = tuple(run if piece in late else state for piece, state in enumerate(pieces))
    known = remember(worker.seen, Vote(vote.lineage, vote.step, order_of(vote.generation)))
    there = ready._replace(pieces=new, run=run, prepared=NONE, ran=worker.plan, seen=known)
    yield f"{who} commits step {vote.step} late, as {title} says", universe.put(world, index, there), False
    if world.left.tears:
        torn = tuple(bridge.torn(run) if piece in late else state for piece, state in enumerate(pieces))
        fewer = world._replace(left=world.left._replace(tears=world.left.tears - 1))
        broken = stop(ready._replace(pieces=torn, prepared=NONE))
        yield f"{who} commits step {vote.step} late; the update fails half way", universe.put(fewer, index, broken), True


def _comes_late(universe: Universe, index: int, worker: Worker, piece: int) -> int:
    """Return the state of a piece after the late commit of the plan's vote; NONE where its gradients are not prepared here."""
    prepared = worker.prepared != NONE and piece in universe.bridge.prepared_pieces(worker.prepared, index)
    if not prepared or worker.pieces[piece] != worker.run:
        return NONE
    return universe.bridge.comes_to(worker.prepared, worker.run, universe.view(worker.plan).plan.vote)


def _fetch(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Fetch run state and pieces from the plan's sources; then train."""
    if not _formed(universe, world, index, worker):
        return
    view = universe.view(worker.plan)
    giver = universe.worker(world, view.state_source)
    if not giver.settled or giver.run == NONE or giver.plan != worker.plan:
        return
    pieces, one_by_one = list(worker.pieces), universe.configuration.state_ranges > 1
    lacking = [piece for piece in view.needs[index] if index not in view.holders[piece]]
    for piece in lacking:
        source = universe.worker(world, view.sources[piece])
        if not source.settled or source.pieces[piece] == NONE or source.plan != worker.plan:
            return
        if pieces[piece] == source.pieces[piece]:
            continue
        pieces[piece] = source.pieces[piece]
        if one_by_one and piece != lacking[-1]:
            label = f"{worker_name(index)} has got piece {piece} on its way into {name(view.order)}"
            yield label, universe.put(world, index, worker._replace(pieces=tuple(pieces), run=giver.run)), False
            return
    running = worker._replace(
        mode=RUNNING, pieces=tuple(pieces), run=giver.run, ran=worker.plan, settled=True, fresh=True, prepared=NONE
    )
    label = f"{worker_name(index)} has what it needs and runs {name(view.order)} from {universe.bridge.states[giver.run]}"
    yield label, universe.put(world, index, running), False
