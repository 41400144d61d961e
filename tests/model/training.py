"""Moves of workers that train: prepare and vote, see a vote, commit, publish, end, notice the loss of peers."""

from collections.abc import Iterator

from tests.model.invariants import check_members, check_vote, claim, publish
from tests.model.universe import Move, Passed, Universe
from tests.model.world import (
    ENTERING,
    FINISHED,
    LEAVING,
    NONE,
    RUNNING,
    STOPPED,
    VOTING,
    Order,
    Vote,
    Worker,
    World,
    name,
    worker_name,
)


def training_moves(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Yield the next moves of a member of a running generation."""
    if worker.mode == RUNNING:
        yield from _enter_vote(universe, world, index, worker)
    passed = _vote_to_see(universe, world, worker)
    if passed is not None:
        yield from _see_vote(universe, world, index, worker, passed)


# ---- prepared, and in the vote


def _enter_vote(universe: Universe, world: World, index: int, worker: Worker) -> Iterator[Move]:
    """Enter the vote: gradients are reduced, and those of the unit replicas have arrived. With the last member, the vote
    passes."""
    if not _peers_compute(universe, world, index, worker):
        return
    check_members(universe, world, worker.plan)
    view, step = universe.view(worker.plan), universe.step(worker) + 1
    last = step > universe.configuration.steps
    what = "the run's last vote" if last else f"the vote of step {step}, prepared,"
    for ready in [NONE] if last else _ballots(universe, world, index, worker, step):
        voting = worker._replace(mode=VOTING, prepared=NONE if last else worker.plan, ready=ready)
        following = universe.put(world, index, voting)
        label = f"{worker_name(index)} enters {what} in {name(view.order)}"
        label += f", ready for {universe.title(ready)}" if ready != NONE else ""
        members = [universe.worker(following, member) for member in view.members]
        if all(member.mode == VOTING for member in members):
            label += "; all have, it passes"
            named = {member.ready for member in members}
            check_vote(universe, world, worker.plan, worker.run, label)
            following = universe.with_vote(following, (worker.plan, step, named.pop() if len(named) == 1 else NONE))
        yield label, following, False


def _peers_compute(universe: Universe, world: World, index: int, worker: Worker) -> bool:
    """Whether every member computes the same step, as a schedule requires."""
    for member in universe.view(worker.plan).members:
        peer = universe.worker(world, member)
        if peer.plan != worker.plan or peer.mode not in (RUNNING, VOTING) or world.side[member] != world.side[index]:
            return False
        if universe.step(peer) != universe.step(worker):
            return False
    return True


def _ballots(universe: Universe, world: World, index: int, worker: Worker, step: int) -> Iterator[int]:
    """Yield the plans that the worker's ballot may name: the notice that all are ready may have arrived, or not yet."""
    yield NONE
    plan = next(
        (plan for plan in switches_of(universe, world, worker.plan) if universe.view(plan).order == worker.newest_received), NONE
    )
    if plan != NONE and not worker.withdrawn and universe.bridge.votable(index, plan, step):
        yield plan


def switches_of(universe: Universe, world: World, base: int) -> list[int]:
    """Return the durable plans to which members of `base` may switch."""
    order = universe.view(base).order
    return [
        plan for plan in universe.durable(world) if universe.view(plan).kind == "continue" and universe.view(plan).base == order
    ]


# ---- a vote is seen


def _vote_to_see(universe: Universe, world: World, worker: Worker) -> Passed | None:
    """Return the vote that this worker has entered and whose result may still reach it."""
    if worker.mode == VOTING:
        plan = worker.plan
    elif worker.mode == STOPPED and "no-late-vote" in universe.off and worker.prepared != NONE:
        plan = worker.prepared
    else:
        return None
    passed = universe.vote_of(world, plan)
    return passed if passed is not None and passed[1] == universe.step(worker) + 1 else None


def _see_vote(universe: Universe, world: World, index: int, worker: Worker, passed: Passed) -> Iterator[Move]:
    """Return from the collective: the vote is stored; then the commit works, is cut short, or leaves its pieces torn."""
    plan, step, switch = passed
    who, title = worker_name(index), universe.title(plan)
    world = publish(universe, world, plan, worker.run) if "stable" not in universe.off else world
    if step > universe.configuration.steps:
        world = claim(universe, world, plan, worker.run)
        yield (
            f"{who} sees the last vote of {title}",
            universe.put(world, index, worker._replace(mode=FINISHED, fresh=False)),
            False,
        )
        return
    known = _note(universe, world, index, worker, passed)
    run = universe.bridge.committed(worker.run, universe.view(plan).plan.lineage, universe.view(plan).order)
    label = f"{who} sees the vote of step {step} in {title}"
    done = _settle(universe, index, known, plan, run)
    after = publish(universe, world, plan, run) if "stable" in universe.off else world
    if worker.mode == STOPPED:
        yield f"{label}, after it has reported, and commits", universe.put(after, index, done), False
        return
    if switch == NONE:
        yield f"{label} and commits", universe.put(after, index, done._replace(mode=RUNNING)), False
    else:
        view = universe.view(switch)
        moved = _hand_over(universe, index, done, plan, switch)
        mode = ENTERING if index in view.members else LEAVING
        moved = moved._replace(mode=mode, plan=switch, ran=switch, fresh=True, settled=True)
        yield f"{label}, commits and switches to {name(view.order)}", universe.put(after, index, moved), False
    stopped = known._replace(mode=STOPPED, plan=NONE)
    if world.left.tears:
        torn = _settle(universe, index, stopped, plan, run, torn=True)
        fewer = world._replace(left=world.left._replace(tears=world.left.tears - 1))
        yield f"{label}; the update fails half way", universe.put(fewer, index, torn), True
    if can_stop(universe, world, index, worker):
        yield f"{label} and stops before it commits", universe.put(world, index, stopped), False


def _note(universe: Universe, world: World, index: int, worker: Worker, passed: Passed) -> Worker:
    """Store the vote before anything else, with its consequences for prepared plans and for pieces kept until a first vote."""
    plan, step, switch = passed
    view = universe.view(plan)
    expired, switched = list(worker.expired), list(worker.switched)
    for other in switches_of(universe, world, plan):
        order, until = universe.view(other).order, universe.view(other).plan.switch_until
        newest_received = worker.newest_received >= order
        if other == switch and order not in switched:
            switched.append(order)
        elif newest_received and other != switch and order not in expired and (step > until or worker.withdrawn):
            expired.append(order)
    pieces = worker.pieces
    if worker.fresh:
        pieces = keep_only(pieces, view.needs[index])
    return worker._replace(
        seen=remember(worker.seen, universe.vote(plan, step)),
        expired=tuple(expired),
        switched=tuple(switched),
        pieces=pieces,
        fresh=False,
        ready=NONE,
    )


def remember(seen: tuple[Vote, ...], vote: Vote) -> tuple[Vote, ...]:
    """Return the last two votes seen, the new one included."""
    return seen if vote in seen else (*seen, vote)[-2:]


def keep_only(pieces: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(state if piece in wanted else NONE for piece, state in enumerate(pieces))


def _settle(universe: Universe, index: int, worker: Worker, plan: int, run: int, torn: bool = False) -> Worker:
    """Update the pieces that the worker needs in `plan`: all to the next state, or half written where the update fails."""
    written = universe.bridge.torn(run) if torn else run
    needs: tuple[int, ...] = universe.bridge.prepared_pieces(plan, index)
    pieces = tuple(
        written if piece in needs and state == worker.run else state for piece, state in enumerate(worker.pieces)
    )  # fmt: skip
    if torn:
        return worker._replace(pieces=pieces, prepared=NONE)
    return worker._replace(pieces=pieces, run=run, prepared=NONE)


def _hand_over(universe: Universe, index: int, worker: Worker, base: int, switch: int) -> Worker:
    """Keep pieces that are no longer needed until the new generation's first vote: rules "former-units" and "former-replicas"."""
    needs, owned = universe.view(switch).needs[index], universe.view(base).plan.pieces_of(worker_name(index))
    sourced = [piece for piece, source in enumerate(universe.view(switch).sources) if source == index]
    gone = set()
    for piece in range(len(worker.pieces)):
        rule = "former-units" if piece in owned else "former-replicas"
        if rule in universe.off and piece not in needs and piece not in sourced:
            gone.add(piece)
    return worker._replace(pieces=tuple(NONE if piece in gone else state for piece, state in enumerate(worker.pieces)))


# ---- peers are gone


def can_stop(universe: Universe, world: World, index: int, worker: Worker) -> bool:
    """Whether a collective of its generation may fail: a peer has ended, is cut off, or has dropped the generation's groups."""
    view = universe.view(worker.plan)
    peers = view.participants if worker.mode in (ENTERING, LEAVING) else view.members
    if (
        worker.mode == LEAVING
        and worker.settled
        and all(_has_run(universe.worker(world, peer), view.order, universe) for peer in view.members)
    ):
        return False
    return any(peer != index and _is_lost(universe, world, index, worker, peer, view.order) for peer in peers)


def _is_lost(universe: Universe, world: World, index: int, worker: Worker, peer: int, order: Order) -> bool:
    other = universe.worker(world, peer)
    if not is_there(other) or world.side[peer] != world.side[index]:
        return True
    if other.plan == NONE:
        # It has dropped its groups, or is a spare. A worker that has not received this generation may still come to enter it.
        return other.newest_received >= order or worker.mode not in (ENTERING, LEAVING)
    if other.plan == worker.plan:
        return False
    theirs = universe.view(other.plan)
    if theirs.order < order:
        return False
    follows = theirs.kind == "continue" and theirs.base == order
    open_still = follows and (other.fresh or other.mode == LEAVING) and "old-groups" not in universe.off
    return not (open_still or (worker.mode in (ENTERING, LEAVING) and theirs.order == order))


def _has_run(worker: Worker, order: Order, universe: Universe) -> bool:
    """Whether the worker has entered that generation, so that no transfer of state waits for a leaver any more."""
    return worker.plan != NONE and (universe.view(worker.plan).order > order or worker.mode in (RUNNING, VOTING, FINISHED))


def is_there(worker: Worker) -> bool:
    return worker.mode != "X"
