"""Moves of the controller: notice a failure, answer it with a plan, prepare and withdraw a switch, be replaced."""

from collections.abc import Iterator

from frostline_controller.recovery.facts import GoOn, NewEpoch, Wait
from frostline_controller.recovery.target import lineage_at
from tests.model.invariants import check_answer
from tests.model.universe import Move, Universe
from tests.model.world import (
    ENDED,
    ENTERING,
    FINISHED,
    JOINING,
    LEAVING,
    NONE,
    RUNNING,
    VOTING,
    Leader,
    Order,
    World,
    name,
    worker_name,
)


def leader_moves(universe: Universe, world: World) -> Iterator[Move]:
    """Yield the controller's next moves."""
    leader = universe.leader(world)
    yield from _notice(universe, world, leader)
    if not leader.recovering:
        yield from _plan_switch(universe, world, leader)
        yield from _learn_of_switch(universe, world, leader)
    else:
        yield from _answer(universe, world, leader)
    if world.left.takeovers:
        yield _take_over(universe, world, leader)
    if world.old != NONE:
        yield from _write_late(universe, world)


# ---- noticing


def _participants(universe: Universe, leader: Leader) -> list[int]:
    plans = [plan for plan in (leader.current, leader.prepared) if plan != NONE]
    return sorted({worker for plan in plans for worker in universe.view(plan).participants})


def _notice(universe: Universe, world: World, leader: Leader) -> Iterator[Move]:
    for index in _participants(universe, leader):
        worker, who = universe.worker(world, index), worker_name(index)
        if index in leader.ended:
            if not leader.recovering:
                yield (
                    f"the controller knows that {who} is gone",
                    universe.with_leader(world, leader._replace(recovering=True)),
                    False,
                )
            continue
        if worker.mode == ENDED and world.side[index] == 0:
            changed = leader._replace(ended=leader.ended | {index}, recovering=True)
            yield f"the controller learns that {who} has ended", universe.with_leader(world, changed), False
        if index in leader.silent or (leader.reports[index] is not None and world.side[index] == 0):
            continue
        silent = universe.with_leader(world, leader._replace(silent=leader.silent | {index}, recovering=True))
        if world.side[index] != 0:
            yield f"{who} cannot be reached, the controller gives it up", silent, False
        elif world.left.hangs and worker.mode != ENDED:
            fewer = silent._replace(left=world.left._replace(hangs=world.left.hangs - 1))
            yield f"{who} misses its deadline though it lives", fewer, True


# ---- switching


def _plan_switch(universe: Universe, world: World, leader: Leader) -> Iterator[Move]:
    configuration = universe.configuration
    if leader.prepared == NONE:
        members = [universe.worker(world, member) for member in universe.view(leader.current).members]
        may = configuration.switch is not None and world.left.switches and len(universe.durable(world)) == 1
        if may and all(member.mode in (RUNNING, VOTING) for member in members):
            plan = universe.bridge.switching_plan(leader, _next(universe, world, leader))
            left = world.left._replace(switches=world.left.switches - 1)
            after = write(universe, world._replace(left=left), plan)
            after = universe.with_leader(after, leader._replace(prepared=plan))
            yield f"the controller writes {universe.title(plan)}, to be switched to", after, False
        return
    view = universe.view(leader.prepared)
    if world.left.withdrawals:
        left = world.left._replace(withdrawals=world.left.withdrawals - 1)
        workers = list(world.workers)
        for index, worker in universe.all_workers(world):
            if world.side[index] == 0 and worker.newest_received == view.order and worker.mode in (RUNNING, VOTING):
                workers[index] = universe.workers.number(worker._replace(withdrawn=True))
        after = world._replace(left=left, workers=tuple(workers))
        yield f"the controller takes {name(view.order)} back", after, False
    for index in universe.view(leader.current).members:
        if world.side[index] == 0 and view.order in universe.worker(world, index).expired:
            dropped = universe.with_leader(world, leader._replace(prepared=NONE))
            yield f"the controller hears that no vote switched to {name(view.order)}, and drops it", dropped, False
            return


def _learn_of_switch(universe: Universe, world: World, leader: Leader) -> Iterator[Move]:
    if leader.prepared == NONE:
        return
    for index, worker in universe.all_workers(world):
        inside = worker.plan == leader.prepared and worker.mode in (ENTERING, RUNNING, VOTING, FINISHED, LEAVING)
        if inside and worker.mode != JOINING and world.side[index] == 0:
            changed = leader._replace(current=leader.prepared, prepared=NONE)
            label = f"the controller hears from {worker_name(index)} that {universe.title(leader.prepared)} runs"
            yield label, universe.with_leader(world, changed), False
            return


# ---- answering


def _answer(universe: Universe, world: World, leader: Leader) -> Iterator[Move]:
    """Answer a failure by production's functions; the plan made from the answer is durable before any worker receives it."""
    found = universe.bridge.answer(leader)
    if isinstance(found, Wait) or world.results:
        return
    usable = _usable(universe, world, leader)
    if not usable:
        return
    order = _next(universe, world, leader)
    label = f"the controller writes {name(order)}: {_words(found)}, workers {', '.join(map(worker_name, usable))}"
    start = check_answer(universe, world, leader, found, label)
    yield label, _with_answer(universe, world, leader, found, usable, order, start), False


def _with_answer(
    universe: Universe, world: World, leader: Leader, found: object, usable: tuple[int, ...], order: Order, start: int
) -> World:
    bridge, current = universe.bridge, universe.view(leader.current).plan
    highest = max(universe.view(plan).plan.lineage for plan in universe.durable(world))
    epoch = current.run_epoch
    if isinstance(found, GoOn):
        fresh = not found.extends_all and "new-lineage" not in universe.off
        lineage = highest + 1 if fresh else lineage_at(bridge.failure(leader), found.state)
    else:
        lineage = highest + 1 if "new-lineage" not in universe.off else current.lineage
        if isinstance(found, NewEpoch) and "epoch" not in universe.off:
            epoch = world.epoch + 1
    plan = bridge.recovery_plan(leader, order, found, usable, lineage, epoch)
    if start == NONE:
        start = bridge.restored(lineage, order)
    number = bridge.view(plan, start)
    after = write(universe, world._replace(epoch=max(world.epoch, epoch)), number)
    cleared = leader._replace(
        current=number, prepared=NONE, recovering=False, reports=(None,) * len(leader.reports), silent=frozenset()
    )  # fmt: skip
    return universe.with_leader(after, cleared)


def write(universe: Universe, world: World, plan: int) -> World:
    return world._replace(plans=universe.plans.number((*universe.durable(world), plan)))


def _next(universe: Universe, world: World, leader: Leader) -> Order:
    return leader.incarnation, max(universe.view(plan).order[1] for plan in universe.durable(world)) + 1


def _usable(universe: Universe, world: World, leader: Leader) -> tuple[int, ...]:
    """Return the workers that a plan may name: those that have reported, and reachable spares."""
    asked = _participants(universe, leader)
    found = []
    for index in universe.everybody:
        if index in leader.ended or index in leader.silent or world.side[index] != 0:
            continue
        if leader.reports[index] is not None or (index not in asked and universe.worker(world, index).mode != ENDED):
            found.append(index)
    return tuple(found)


def _words(found: object) -> str:
    if isinstance(found, GoOn):
        step = f"go on at step {found.state.step} voted by {found.state.generation}"
        return step + (", late" if found.vote is not None else "") + ("" if found.extends_all else ", in a new lineage")
    return "raise the epoch, from the checkpoint" if isinstance(found, NewEpoch) else "go back to the checkpoint"


# ---- another controller


def _take_over(universe: Universe, world: World, leader: Leader) -> Move:
    """Replace the controller: the new one raises the incarnation and has the durable state; reports went to its predecessor."""
    durable = leader._replace(
        incarnation=leader.incarnation + 1,
        recovering=False,
        reports=(None,) * len(leader.reports),
        ended=frozenset(),
        silent=frozenset(),
    )
    after = universe.with_leader(world, durable)._replace(left=world.left._replace(takeovers=world.left.takeovers - 1))
    if "incarnation" in universe.off and leader.recovering:
        after = after._replace(old=world.leader)
    return f"another controller takes over as incarnation {durable.incarnation}", after, True


def _write_late(universe: Universe, world: World) -> Iterator[Move]:
    """Let a replaced controller write its answer, only without the rule "incarnation"."""
    old = universe.leaders[world.old]
    found = universe.bridge.answer(old)
    usable = _usable(universe, world, old)
    if isinstance(found, Wait) or not usable:
        return
    order = (old.incarnation, _next(universe, world, old)[1])
    current = universe.leader(world)
    label = f"the controller that was replaced writes {name(order)}: {_words(found)}"
    start = check_answer(universe, world, old, found, label)
    after = _with_answer(universe, world, old, found, usable, order, start)
    yield label, universe.with_leader(after, current)._replace(old=NONE), False


__all__ = ["LEAVING", "VOTING", "leader_moves"]
