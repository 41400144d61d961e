"""The invariants of every world; a search stops at the first world that breaks one (docs/adr/0007).

They compare contents (the voters of each step), which production cannot see: it compares tags.
"""

from typing import TYPE_CHECKING

from frostline_controller.recovery.facts import Answer, GoBack, GoOn, NewEpoch
from tests.model.world import NONE, Leader, Order, Report, State, World, name, worker_index, worker_name

if TYPE_CHECKING:
    from tests.model.universe import Universe


class Broken(Exception):
    """An invariant does not hold. The message names it and the difference."""

    def __init__(self, invariant: str, message: str, label: str = "") -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant, self.label = invariant, label


# ---- training


def check_members(universe: "Universe", world: World, plan: int) -> None:
    """Check I1: the members of a generation run with one content of every piece, unit replicas included."""
    view, states = universe.view(plan), universe.bridge.states
    runs = {member: universe.worker(world, member).run for member in view.members}
    contents = {states[run] for run in runs.values()}
    if len(contents) > 1:
        reported = ", ".join(f"{worker_name(member)} {states[run]}" for member, run in runs.items())
        raise Broken("I1", f"members of {name(view.order)} run from different states: {reported}")
    (run,) = contents
    for member in view.members:
        for piece in universe.bridge.prepared_pieces(plan, member):
            held = universe.worker(world, member).pieces[piece]
            if held == NONE or states[held] != run:
                has = str(states[held]) if held != NONE else "nothing"
                raise Broken("I1", f"{name(view.order)} runs at {run}, but {worker_name(member)} has {has} for piece {piece}")


def check_vote(universe: "Universe", world: World, plan: int, run: int, label: str) -> None:
    """Check I4 and I2.

    I4: no vote passes in a generation after one of a later generation, except across a raised run epoch. I2: the states published
    on the surviving lineage are those of the run's own history.
    """
    view = universe.view(plan)
    for other, step, _ in universe.passed[world.passed]:
        later = universe.view(other)
        if later.order > view.order and later.plan.run_epoch == view.plan.run_epoch:
            text = f"a vote passes in {name(view.order)} after the vote of step {step} in {name(later.order)}"
            raise Broken("I4", text, label)
    if view.plan.run_epoch != world.epoch:
        return
    state = universe.bridge.states[run]
    starts = lineage_starts(universe, world)
    for (lineage, step), number in universe.published[world.published]:
        cuts = [start for other, start in starts.items() if lineage < other <= view.plan.lineage]
        if lineage > view.plan.lineage or step > min(cuts, default=state.step) or step > state.step:
            continue
        content = universe.bridge.states[number]
        if state.history[:step] != content.history:
            text = f"{name(view.order)} goes on from {state}, but the record of step {step} in lineage {lineage} says {content}"
            raise Broken("I2", text, label)


def lineage_starts(universe: "Universe", world: World) -> dict[int, int]:
    """Return the step from which each lineage starts, by the durable plans.

    A lineage without a vote that another plan has answered has left no trace.
    """
    starts: dict[int, int] = {}
    plans = universe.durable(world)
    for plan in plans:
        made = universe.view(plan).plan
        begun = universe.vote_of(world, plan) is not None or plan == plans[-1]
        if begun and made.lineage not in starts:
            starts[made.lineage] = max(made.start_step, 0)
    return starts


# ---- what leaves the world


def publish(universe: "Universe", world: World, plan: int, run: int) -> World:
    """Publish a step's record under the run epoch. Checks I2: no two contents for one (lineage, step)."""
    state, made = universe.bridge.states[run], universe.view(plan).plan
    if state.step == 0 or made.run_epoch != world.epoch:
        return world
    cuts = [start for lineage, start in lineage_starts(universe, world).items() if lineage > made.lineage == state.lineage]
    is_newest = universe.view(plan).order == max(universe.view(one).order for one in universe.durable(world))
    if is_newest and min(cuts, default=state.step) < state.step:
        text = f"{state} is published in lineage {made.lineage}, though a later one was begun at step {min(cuts)}"
        raise Broken("I2", text, f"a member of {name(universe.view(plan).order)} publishes it")
    key = (state.lineage, state.step)
    published = universe.published[world.published]
    for known, number in published:
        if known == key:
            other = universe.bridge.states[number]
            if other.history != state.history:
                text = f"step {state.step} of lineage {state.lineage} is published as {state} and as {other}"
                raise Broken("I2", text, f"a member of {name(universe.view(plan).order)} publishes it")
            return world
    return world._replace(published=universe.published.number(tuple(sorted([*published, (key, run)]))))


def claim(universe: "Universe", world: World, plan: int, run: int) -> World:
    """Claim the result: an exclusive creation under the current run epoch. Checks I7: two results are never claimed."""
    made = universe.view(plan).plan
    if "one-result" not in universe.off and (world.results or made.run_epoch != world.epoch):
        return world
    content = universe.bridge.states[run]
    results = tuple(sorted({*world.results, run}))
    contents = {universe.bridge.states[result].history for result in results}
    if len(contents) > 1:
        others = ", ".join(str(universe.bridge.states[result]) for result in world.results)
        raise Broken(
            "I7",
            f"the result is claimed with {content}, and was claimed with {others}",
            f"{name(universe.view(plan).order)} ends",
        )
    return world._replace(results=results)


# ---- answers


def check_answer(universe: "Universe", world: World, leader: Leader, found: Answer, label: str) -> int:
    """Check I3, I5 and I8 of an answer from which a plan will be made. Returns the state that a GoOn starts from, else NONE."""
    best = newest_whole(universe, world, leader)
    states = universe.bridge.states
    if not isinstance(found, GoOn):
        if best != NONE and isinstance(found, GoBack):
            raise Broken("I5", f"the survivors have all pieces at {states[best]}, but the answer is the checkpoint", label)
        if isinstance(found, NewEpoch):
            _check_epoch(universe, leader, found, label)
        _check_single_fault(universe, world, leader, NONE, label)
        return NONE
    start = _check_holders(universe, world, leader, found, label)
    if best != NONE and (states[best].lineage, states[best].step) > (states[start].lineage, states[start].step):
        raise Broken("I5", f"the survivors have all pieces at {states[best]}, but the answer is {states[start]}", label)
    if best == NONE or (states[start].lineage, states[start].step) != (states[best].lineage, states[best].step):
        raise Broken("I5", f"the answer is {states[start]}, which is not on the history that the current plan stands on", label)
    _check_single_fault(universe, world, leader, start, label)
    return start


def _check_holders(universe: "Universe", world: World, leader: Leader, found: GoOn, label: str) -> int:
    """Check I3: all pieces come from one content, and each holder has it or can reach it."""
    contents: dict[int, list[str]] = {}
    for piece, workers in enumerate(found.holders):
        for worker_id in workers:
            index = worker_index(worker_id)
            report = leader.reports[index]
            assert report is not None, worker_id
            state = _brought(universe, index, report, piece, found)
            if state == NONE:
                raise Broken("I3", f"{worker_id} is named for piece {piece} at {found.state}, but cannot come to it", label)
            contents.setdefault(state, []).append(f"piece {piece} of {worker_id}")
    if len({universe.bridge.states[state] for state in contents}) > 1:
        reported = "; ".join(f"{', '.join(whose)}: {universe.bridge.states[state]}" for state, whose in contents.items())
        raise Broken("I3", f"the pieces come from different contents: {reported}", label)
    (start,) = contents
    return start


def _brought(universe: "Universe", index: int, report: Report, piece: int, found: GoOn) -> int:
    """Return the state that a holder really brings for `piece`: its own, or its own after the late commit; NONE for neither."""
    state = report.pieces[piece]
    if state == NONE:
        return NONE
    bridge = universe.bridge
    if bridge.matches(state, found.state):
        return state
    ready = report.prepared != NONE and piece in bridge.prepared_pieces(report.prepared, index) and state == report.run
    if not ready or bridge.states[state].torn:
        return NONE
    return bridge.comes_to(report.prepared, state, found.vote)


def newest_whole(universe: "Universe", world: World, leader: Leader) -> int:
    """Return the newest content on the current plan's history for which reporters bring every piece; NONE where there is none."""
    bridge, states = universe.bridge, universe.bridge.states
    usable = {
        index: report
        for index, report in enumerate(leader.reports)
        if report is not None and index not in leader.ended and index not in leader.silent
    }
    votes = {(vote.lineage, vote.step, vote.order) for report in leader.reports if report is not None for vote in report.seen}
    current_view = universe.view(leader.current)
    current = current_view.plan
    if current.vote is not None:
        generation = current.vote.generation
        votes.add((current.vote.lineage, current.vote.step, (generation.incarnation, generation.counter)))
    brought: dict[int, set[int]] = {}
    for index, report in usable.items():
        for piece, state in enumerate(report.pieces):
            if state == NONE or states[state].torn or not _is_bearer(universe, world, leader, index, report, piece):
                continue
            brought.setdefault(state, set()).add(piece)
            ready = report.prepared != NONE and piece in bridge.prepared_pieces(report.prepared, index) and state == report.run
            named = index in (current_view.holders[piece] if current_view.holders else ())
            if ready and (named or _ran_lately(universe, leader, report)):
                view = bridge.views[report.prepared]
                if (view.plan.lineage, states[state].step + 1, view.order) in votes:
                    brought.setdefault(bridge.committed(state, view.plan.lineage, view.order), set()).add(piece)
    whole = [
        state
        for state, pieces in brought.items()
        if len(pieces) == universe.configuration.num_pieces and _stands(universe, world, leader, state)
    ]
    return max(whole, key=lambda state: (states[state].lineage, states[state].step), default=NONE)


def _is_bearer(universe: "Universe", world: World, leader: Leader, index: int, report: Report, piece: int) -> bool:
    """Whether a returning worker's state counts: it ran one of the generations in question, or the current plan names it."""
    current = universe.view(leader.current)
    if current.kind != "fresh" and current.holders and index in current.holders[piece]:
        return True
    if index in current.participants and report.pieces[piece] == current.start:
        return True  # the worker received it while entering
    return _ran_lately(universe, leader, report)


def _ran_lately(universe: "Universe", leader: Leader, report: Report) -> bool:
    """Whether its last votes were of the current generation, of the prepared one, or of the one that the current one
    continues."""
    if report.ran == NONE:
        return False
    current = universe.view(leader.current)
    ran = universe.view(report.ran).order
    return ran == current.order or report.ran == leader.prepared or (current.kind == "continue" and ran == current.base)


def _stands(universe: "Universe", world: World, leader: Leader, state: int) -> bool:
    """Whether a content extends the start of the newest durable plan, by votes of generations that have been possible since."""
    by_order = {universe.view(plan).order: plan for plan in universe.durable(world)}
    current = leader.current
    orders: set[Order] = {universe.view(current).order}
    if leader.prepared != NONE:
        orders.add(universe.view(leader.prepared).order)
    while universe.view(current).kind == "continue" or (
        universe.view(current).kind == "survivors" and universe.vote_of(world, current) is None
    ):
        # A state that extends a plan without any vote extends that plan's base as well.
        current = by_order[universe.view(current).base]
        orders.add(universe.view(current).order)
        orders |= {order for order, plan in by_order.items() if universe.view(plan).base == universe.view(current).order
                   and universe.view(plan).kind == "continue"}  # fmt: skip
    start, content = universe.view(current).start, universe.bridge.states[state]
    begun = universe.bridge.states[start]
    if content.step == begun.step:
        return content == begun
    return content.history[: begun.step] == begun.history and set(content.history[begun.step :]) <= orders


def _check_epoch(universe: "Universe", leader: Leader, found: NewEpoch, label: str) -> None:
    """Check I5: the run epoch is raised only where a generation may still run and none of its members answers."""
    for generation in found.generations:
        order = (generation.incarnation, generation.counter)
        views = [universe.view(plan) for plan in (leader.current, leader.prepared) if plan != NONE]
        view = next(view for view in views if view.order == order)
        for member in view.members:
            report = leader.reports[member]
            if member in leader.ended or (report is not None and report.newest_received >= order):
                raise Broken("I5", f"the epoch is raised for {name(order)} though {worker_name(member)} answers for it", label)


def check_cause(universe: "Universe", world: World, label: str) -> None:
    """Check I9: without a fault no worker reports a failure; switches, leavers and other controllers disturb no step."""
    if _faults(universe, world) == 0:
        raise Broken("I9", "a failure is reported though nothing has failed", label)


def _faults(universe: "Universe", world: World) -> int:
    """Return the greatest number of failure domains that faults can have hit so far; a partition counts as two."""
    used, left = universe.configuration.left, world.left
    return used.crashes - left.crashes + used.tears - left.tears + used.hangs - left.hangs + 2 * (used.cuts - left.cuts)


def _check_single_fault(universe: "Universe", world: World, leader: Leader, start: int, label: str) -> None:
    """Check I8: while all pieces are covered, the loss of one failure domain undoes nothing that was published."""
    if _faults(universe, world) > 1 or any(universe.view(plan).plan.uncovered for plan in universe.durable(world)):
        return
    have = universe.bridge.states[start].step if start != NONE else 0
    newest = max((step for (_, step), _ in universe.published[world.published]), default=0)
    if start == NONE or have < newest:
        back = "to the checkpoint" if start == NONE else f"to step {have}, where step {newest} is published"
        raise Broken("I8", f"one fault takes the run back {back}", label)


__all__ = ["Broken", "State", "check_answer", "check_members", "check_vote", "claim", "publish"]
