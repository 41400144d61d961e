"""Any failure at all: what an answer may never do, against a second, plainer form of the rules."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from frostline_contract.plan import PieceHolders, SeenVote, StateTag
from frostline_controller.recovery.answer import answer
from frostline_controller.recovery.facts import Failure, GoBack, GoOn, HeldPiece, NewEpoch, SurvivorReport, Wait
from frostline_controller.recovery.target import counted
from tests.unit.controller.failures import NUM_UNITS, generation, plan

WORKERS = "ABCDE"
GENERATIONS = (1, 2, 3)
generations = st.sampled_from([generation(counter) for counter in GENERATIONS])
tags = st.builds(StateTag, lineage=st.integers(0, 1), step=st.integers(8, 10), generation=generations)
votes = st.builds(lambda tag: SeenVote(**tag.model_dump(), slots=(1.0,)), tags)


@st.composite
def reports(draw: st.DrawFn, worker: str) -> SurvivorReport:
    """Mostly a worker with one state; units of another state, torn or prepared ones among them."""
    state, other = draw(tags), draw(tags)
    held = tuple(
        HeldPiece(unit, state=draw(st.sampled_from([state, state, state, other, None])), prepared=draw(st.booleans()))
        for unit in sorted(draw(st.sets(st.integers(0, NUM_UNITS - 1))))
    )
    return SurvivorReport(
        worker_id=worker, newest_received=draw(generations), ran=draw(st.none() | generations), held=held,
        seen=tuple(draw(st.lists(votes, max_size=2))),
        switched=frozenset(draw(st.sets(generations, max_size=1))), expired=frozenset(draw(st.sets(generations, max_size=1))),
    )  # fmt: skip


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    start = draw(st.sampled_from(["fresh", "checkpoint", "continue", "survivors"]))
    members = "".join(draw(st.permutations("ABCD")))
    start_tag = draw(tags) if start == "survivors" else None
    current = plan(2, members, draw(st.sampled_from([1, 2, 4])), base=1, start=start, start_tag=start_tag,
                   lineage=draw(st.integers(start_tag.lineage, 1)) if start_tag else 0,
                   start_vote=draw(st.none() | votes))  # fmt: skip
    if start in ("continue", "survivors"):
        named = [PieceHolders(participants=tuple(sorted(draw(st.sets(st.integers(0, 3)))))) for _ in range(NUM_UNITS)]
        current = current.model_copy(update={"holders": tuple(named)})
    following = plan(3, draw(st.sampled_from(["AE", "E", "ABCDE"])), base=2, start="continue")
    reporting = draw(st.sets(st.sampled_from(WORKERS)))
    gone = st.sets(st.sampled_from(WORKERS))
    return Failure(
        current=current, prepared=draw(st.sampled_from([None, following])),
        reports={worker: draw(reports(worker)) for worker in sorted(reporting)},
        ended=frozenset(draw(gone)), silent=frozenset(draw(gone)),
    )  # fmt: skip


def can_bring(failure: Failure, worker: str, unit: int, state: StateTag) -> bool:
    """The rule: the worker has this very state; or the state before it, with this vote's gradients, and the vote is known."""
    report = failure.reports[worker]
    for one in counted(failure, report):
        if one.piece != unit or one.state is None:
            continue
        known = [vote for made in failure.reports.values() for vote in made.seen]
        known += [failure.current.vote] if failure.current.vote else []
        voted = any((v.lineage, v.step, v.generation) == (state.lineage, state.step, state.generation) for v in known)
        late = one.prepared and one.state.step == state.step - 1 and one.state.lineage <= state.lineage
        if one.state == state or (late and voted and report.ran == state.generation):
            return True
    return False


ALL_TAGS = [
    StateTag(lineage=lineage, step=step, generation=generation(counter))
    for lineage, step, counter in itertools.product((0, 1), range(8, 12), GENERATIONS)
]


@settings(max_examples=250, deadline=None)
@given(failures())
def test_goes_on_from_one_state_the_newest_that_is_whole(failure: Failure) -> None:
    found = answer(failure)
    whole = [
        state
        for state in ALL_TAGS
        if all(any(can_bring(failure, worker, unit, state) for worker in failure.reports) for unit in range(NUM_UNITS))
    ]
    newest = max(whole, key=lambda t: (t.lineage, t.step, t.generation.incarnation, t.generation.counter), default=None)
    if isinstance(found, GoBack):
        assert newest is None
        assert found.missing
        return
    if not isinstance(found, GoOn):
        return
    assert found.state == newest
    for unit, workers in enumerate(found.holders):
        expected = [worker for worker in sorted(failure.reports) if can_bring(failure, worker, unit, found.state)]
        assert list(workers) == expected, "everybody who has the state and nobody else"
    assert any(found.state_source in workers for workers in found.holders)
    held = {one.piece: one.state for one in counted(failure, failure.reports[found.state_source])}
    assert found.vote is not None or found.state in held.values(), "whoever gives the run state has come to it, or can"
    assert not {worker for workers in found.holders for worker in workers} & (failure.ended | failure.silent)


@settings(max_examples=250, deadline=None)
@given(failures())
def test_no_plan_while_a_generation_may_run_or_somebody_may_still_report(failure: Failure) -> None:
    found = answer(failure)
    plans = [made for made in (failure.current, failure.prepared) if made is not None]
    asked = set()
    for made in plans:
        for worker in made.participants:
            promised = worker in failure.reports and not failure.reports[worker].newest_received < made.generation
            if not promised and worker not in failure.ended | failure.silent:
                asked.add(worker)
    assert isinstance(found, Wait) == bool(asked)
    if isinstance(found, Wait):
        assert set(found.workers) == asked
        return
    following = plans[1].generation if len(plans) == 2 else None
    switched = any(following in made.switched for made in failure.reports.values()) if following else False
    expired = any(following in made.expired for made in failure.reports.values()) if following else False
    running = set()
    for made, known in zip(plans, (switched, expired), strict=False):
        stopped = any(
            worker in failure.ended
            or (worker in failure.reports and not failure.reports[worker].newest_received < made.generation)
            for worker in made.placement.workers
        )
        if not stopped and not known:
            running.add(made.generation)
    assert isinstance(found, NewEpoch) == bool(running)
    if isinstance(found, NewEpoch):
        assert set(found.generations) == running


@settings(max_examples=120, deadline=None)
@given(failures(), st.sampled_from(WORKERS))
def test_a_state_that_is_lost_never_makes_the_answer_newer(failure: Failure, worker: str) -> None:
    """A survivor dies between two answers: the second answer is the same state or an older one, or the checkpoint."""
    before = answer(failure)
    after = answer(Failure(**{**failure.__dict__, "ended": failure.ended | {worker}}))
    if isinstance(before, GoOn) and isinstance(after, GoOn):
        key = lambda t: (t.lineage, t.step, t.generation.incarnation, t.generation.counter)  # noqa: E731
        assert key(after.state) <= key(before.state)
    assert not (isinstance(before, GoBack) and isinstance(after, GoOn))


@settings(max_examples=120, deadline=None)
@given(failures())
def test_an_answer_depends_on_the_facts_alone(failure: Failure) -> None:
    turned = dict(reversed(list(failure.reports.items())))
    assert answer(Failure(**{**failure.__dict__, "reports": turned})) == answer(failure)


@settings(max_examples=120, deadline=None)
@given(failures())
def test_who_ran_neither_generation_brings_only_what_the_plan_names_it_for(failure: Failure) -> None:
    for worker, made in failure.reports.items():
        recent = {failure.current.generation} | ({failure.prepared.generation} if failure.prepared else set())
        if failure.current.start == "continue":
            recent.add(generation(1))
        usable = counted(failure, made)
        if worker in failure.ended | failure.silent:
            assert usable == ()
        elif made.ran in recent:
            assert usable == made.held
        else:
            start = failure.current.start_tag
            for one in usable:
                on_the_way = worker in failure.current.participants and one.state == start is not None
                assert worker in failure.current.holders_of(one.piece) or (on_the_way and not one.prepared)
