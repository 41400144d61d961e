"""Plans of large worlds: they equal those of a plain reading of the rules, and their cost grows with their size alone.

The plain reading looks at every worker for every unit; production keeps an index. Cost is counted in calls of Python
functions, which no other program on the machine changes.
"""

import random
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.plan import GenerationId, PieceHolders, Placement, Plan, StateTag
from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.members.stragglers import slowness
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.planner.plans import buddies_of, entry_plan, survivors_plan, switching_plan, uncovered_of
from frostline_controller.recovery.answer import answer
from frostline_controller.recovery.facts import Failure, GoOn, HeldPiece, SurvivorReport
from frostline_controller.run.durable import STATE_BYTES_MAX, DurableState, decode_state, encode_state

UNIT = UnitProfile(
    forward_seconds=0.1, backward_seconds=0.2, parameter_bytes=1, optimizer_bytes=2, activation_bytes=3, output_bytes=4
)
PROFILE = KeptProfile.of(WorkerProfile(micro_batch_size=4, units=(UNIT,)))
STORE = Worker("a/1", "trainer-0", "node", 1, "127.0.0.1", 1, PROFILE, registered_at=0.0, last_received=0.0)
ONE, TWO = GenerationId(incarnation=1, counter=1), GenerationId(incarnation=1, counter=2)


def placement(pp: int, dp: int, virtual: int, units: int, workers: Sequence[str]) -> Placement:
    stages = pp * virtual
    bounds = tuple(round(stage * units / stages) for stage in range(stages + 1))
    return Placement(
        pp_degree=pp, dp_degree=dp, virtual_stages=virtual, stage_bounds=bounds, leaf_bounds=tuple(range(dp + 1)),
        workers=tuple(workers[: pp * dp]),
    )  # fmt: skip


def first_plan(placed: Placement, domains: dict[str, str], state_ranges: int = 1) -> Plan:
    return entry_plan(draft(ONE, placed, domains, state_ranges), base=None, checkpoint=None, run_epoch=0)


def draft(generation: GenerationId, placed: Placement, domains: dict[str, str], state_ranges: int = 1) -> PlanDraft:
    return PlanDraft(
        generation=generation, lineage=0, placement=placed, first_worker=STORE, domains=domains, state_ranges=state_ranges
    )


@st.composite
def worlds(draw: Any) -> tuple[Plan, Placement, dict[str, str], int]:
    """Draw a running plan, a placement of some of its workers and newcomers, their failure domains, and the number of units."""
    units = draw(st.integers(4, 12))
    names = [f"w{number}/x" for number in range(14)]
    domains = {name: f"node-{draw(st.integers(0, 3))}" for name in names} if draw(st.booleans()) else {}

    def one() -> Placement:
        pp = draw(st.integers(1, 3))
        virtual = draw(st.integers(1, 1 if pp == 1 or units < 2 * pp else 2))
        return placement(pp, draw(st.integers(1, 4)), virtual, units, draw(st.permutations(names)))

    return first_plan(one(), domains), one(), domains, units


# ---- the rules, read plainly


def units_of(placed: Placement, worker: str) -> list[int]:
    if worker not in placed.workers:
        return []
    pp_rank = placed.workers.index(worker) % placed.pp_degree
    stages = [pp_rank + chunk * placed.pp_degree for chunk in range(placed.virtual_stages)]
    return [unit for stage in stages for unit in range(placed.stage_bounds[stage], placed.stage_bounds[stage + 1])]


def owners(placed: Placement, unit: int) -> list[str]:
    return [worker for worker in placed.workers if unit in units_of(placed, worker)]


def needs(plan: Plan, worker: str) -> list[int]:
    return sorted({*units_of(plan.placement, worker), *(u for u, buddy in enumerate(plan.buddies) if buddy == worker)})


def plain_sources(base: Placement, new: Placement, units: int) -> tuple[str, ...]:
    chosen = []
    for unit in range(units):
        there = owners(base, unit)
        keeping = [worker for worker in there if unit in units_of(new, worker)]
        staying = [worker for worker in there if worker in new.workers]
        candidates = keeping or staying or there
        chosen.append(candidates[unit % len(candidates)])
    return tuple(chosen)


def plain_buddies(placed: Placement, domains: dict[str, str], held: Sequence[set[str]]) -> tuple[str, ...]:
    buddies, load = [""] * placed.stage_bounds[-1], Counter[str]()
    for stage in range(placed.pp_degree * placed.virtual_stages):
        units = range(placed.stage_bounds[stage], placed.stage_bounds[stage + 1])
        there = owners(placed, units[0])
        at = {domains.get(worker) for worker in there}
        elsewhere = [worker for worker in placed.workers if domains and domains.get(worker) not in at]
        if len(at) > 1 or not elsewhere:
            continue
        place, size = placed.workers.index(there[0]), len(placed.workers)

        def preference(worker: str, units: range = units, place: int = place, size: int = size) -> tuple[int, int, int]:
            have = sum(worker in held[unit] for unit in units) if held else 0
            return load[worker], -have, (placed.workers.index(worker) - place) % size

        buddy = min(elsewhere, key=preference)
        load[buddy] += len(units)
        for unit in units:
            buddies[unit] = buddy
    return tuple(buddies)


def plain_uncovered(placed: Placement, domains: dict[str, str], buddies: Sequence[str]) -> tuple[int, ...]:
    return tuple(u for u, buddy in enumerate(buddies) if not buddy and len({domains.get(o) for o in owners(placed, u)}) < 2)


@given(worlds())
def test_a_switch_is_what_the_plain_rules_say(world: tuple[Plan, Placement, dict[str, str], int]) -> None:
    base, new, domains, units = world
    plan = switching_plan(draft(TWO, new, domains), base=base, window=(1, 2))
    leavers = tuple(worker for worker in base.placement.workers if worker not in new.workers)
    participants = new.workers + leavers
    held = [{worker for worker in base.participants if unit in needs(base, worker)} for unit in range(units)]
    buddies = plain_buddies(new, domains, held)
    assert (plan.leavers, plan.participants) == (leavers, participants)
    assert plan.sources == plain_sources(base.placement, new, units)
    assert plan.holders == tuple(
        PieceHolders(participants=tuple(i for i, worker in enumerate(participants) if unit in needs(base, worker)))
        for unit in range(units)
    )
    assert (plan.buddies, plan.uncovered) == (buddies, plain_uncovered(new, domains, buddies))
    assert base.buddies == plain_buddies(base.placement, domains, [])


def nodes_of(workers: set[str], domains: dict[str, str]) -> int:
    return len({domains.get(worker) for worker in workers})


@given(worlds(), st.data())
def test_what_survivors_hold_is_dealt_as_the_plain_rules_say(
    world: tuple[Plan, Placement, dict[str, str], int], data: st.DataObject
) -> None:
    base, new, domains, units = world
    everybody = sorted({*base.placement.workers, *new.workers})
    holders = tuple(tuple(sorted(data.draw(st.sets(st.sampled_from(everybody), min_size=1, max_size=4)))) for _ in range(units))
    tag = StateTag(lineage=0, step=3, generation=ONE)
    plan = survivors_plan(draft(TWO, new, domains), base=base, found=GoOn(tag, holders, holders[0][0], None, True))
    expected = [[worker for worker in plan.participants if worker in held] for held in holders]
    assert [plan.holders_of(unit) for unit in range(units)] == expected
    assert all(expected), "each unit has a participant that holds it"
    for unit, there in enumerate(expected):
        keeping = [worker for worker in there if unit in units_of(new, worker)] or there
        assert plan.sources[unit] == keeping[unit % len(keeping)]
    assert plan.buddies == plain_buddies(new, domains, [set(held) for held in holders])
    for one in plan.leavers:
        without = [(set(held), {*new.workers, *plan.leavers} - {one}) for held in holders]
        needed = any(nodes_of(held & there, domains) < min(2, nodes_of(held, domains)) for held, there in without)
        assert needed, f"{one} is needless"


@given(worlds())
def test_the_index_says_what_the_fields_say(world: tuple[Plan, Placement, dict[str, str], int]) -> None:
    base, new, domains, units = world
    plan = switching_plan(draft(TWO, new, domains), base=base, window=(1, 2))
    for worker in [*plan.participants, "stranger/x", ""]:
        assert plan.placement.units_of(worker) == units_of(plan.placement, worker)
        assert plan.needs(worker) == needs(plan, worker)
        assert plan.replicas_kept_by(worker) == [unit for unit, buddy in enumerate(plan.buddies) if buddy == worker]
        assert plan.held_by(worker) == {unit for unit in range(units) if worker in plan.holders_of(unit)}
        for unit in range(-1, units + 1):
            assert plan.placement.holds(worker, unit) == (unit in units_of(plan.placement, worker))
    for unit in range(units):
        assert plan.placement.owners(unit) == owners(plan.placement, unit)
        assert plan.needed_by(unit) == [worker for worker in plan.placement.workers if unit in needs(plan, worker)]
    moved = plan.placement.model_copy(update={"workers": tuple(reversed(plan.placement.workers))})
    assert moved.units_of(moved.workers[0]) == units_of(moved, moved.workers[0]), "a copy has an index of its own"
    assert plan == Plan.model_validate(plan.model_dump()), "what was looked up is no part of a plan"


# ---- the cost


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of Python functions, comprehensions and generators that were begun or resumed."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def large() -> tuple[Plan, Placement, dict[str, str]]:
    workers = [f"{number:036d}/abcdef" for number in range(512)]
    domains = {worker: f"node-{number // 8}" for number, worker in enumerate(workers)}
    return first_plan(placement(8, 64, 1, 100, workers), domains), placement(16, 32, 1, 100, workers), domains


def test_a_reshape_of_512_workers_and_100_units_asks_no_worker_for_each_unit(
    large: tuple[Plan, Placement, dict[str, str]],
) -> None:
    base, new, domains = large
    calls = calls_of(lambda: switching_plan(draft(TWO, new, domains), base=base, window=(1, 2)))
    # 6,400 owners of units are looked up in both placements; each worker asked for each unit was 10 million calls.
    assert calls < 40_000
    assert calls_of(lambda: (buddies_of(new, domains, base.pieces), uncovered_of(new, domains, ("",) * 100, base.pieces))) < 5_000


def test_a_failure_of_512_workers_is_answered_without_asking_each_for_each_unit(
    large: tuple[Plan, Placement, dict[str, str]],
) -> None:
    base, new, domains = large
    tag = StateTag(lineage=0, step=3, generation=ONE)
    reports = {
        worker: SurvivorReport(
            worker, newest_received=TWO, ran=ONE, held=tuple(HeldPiece(unit, tag) for unit in base.needs(worker))
        )
        for worker in base.placement.workers[1:]
    }
    failure = Failure(base, None, reports, frozenset(base.placement.workers[:1]), frozenset())
    held = sum(len(report.held) for report in reports.values())
    found = answer(failure)
    assert isinstance(found, GoOn)
    assert calls_of(lambda: answer(failure)) < 25 * held
    survivors_plan(draft(TWO, new, domains), base=base, found=found)
    assert calls_of(lambda: survivors_plan(draft(TWO, new, domains), base=base, found=found)) < 10 * held


@pytest.mark.parametrize("ranges", [1, 72])
def test_two_plans_of_a_thousand_workers_and_thousands_of_pieces_fit_into_the_durable_state(ranges: int) -> None:
    """98 units of 72 pieces, while a reshape from 64 replicas to 128 is prepared."""
    drawn = random.Random(1)
    workers = [f"{uuid.UUID(int=drawn.getrandbits(128))}/{drawn.getrandbits(24):06x}" for _ in range(1024)]
    domains = {worker: f"node-{number // 8}" for number, worker in enumerate(workers)}
    base = first_plan(placement(16, 64, 1, 98, workers), domains, ranges)
    new = placement(8, 128, 1, 98, workers[::-1])
    following = switching_plan(draft(TWO, new, domains, ranges), base=base, window=(1, 2))
    assert len(following.sources) == 98 * ranges
    state = DurableState(current=base, prepared=following)
    text = encode_state(state)
    assert len(text) < STATE_BYTES_MAX // 2
    assert decode_state(text) == state


def test_who_is_slow_among_a_thousand_is_found_without_comparing_all_with_all() -> None:
    work = {f"w{number}": 1.0 for number in range(1000)}
    busy = {worker: 1.0 + number % 7 for number, worker in enumerate(work)}
    assert calls_of(lambda: slowness(busy, work)) < 20_000
