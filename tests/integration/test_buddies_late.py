"""Late commits, after the process groups are gone: owners and buddies reach the bits of members that committed in time."""

from dataclasses import replace
from typing import Any

import pytest

from frostline_contract.plan import Plan
from tests.exact_cases import NUM_UNITS, Case
from tests.hand_made_plans import Layout, Segment, make_plan, run_series
from tests.integration.test_buddies import TIED, copies_of
from tests.warm_workers import Call, WarmWorkers

CASE = replace(TIED, freezing=((3, 2),), steps=4)
LAYOUT, DOMAINS = Layout(3, 1), (0, 1, 2)
IN_CELLS, IN_SLICES = replace(CASE, cells=(1, 9, 2, 4)), replace(LAYOUT, slices=(1, 2, 1))


def fresh_plan(workers: WarmWorkers, layout: Layout = LAYOUT) -> Plan:
    ports = workers.call([Call("tests.engine_member:store_port", {})] * len(DOMAINS))
    return make_plan(Segment(layout, CASE.steps, domains=DOMAINS), None, ports)


def everywhere(
    workers: WarmWorkers, function: str, arguments: list[dict[str, Any]], case: Case = CASE, layout: Layout = LAYOUT
) -> list[Any]:
    fields = fresh_plan(workers, layout).model_dump(mode="json")
    calls = [
        Call(f"tests.integration.buddy_members:{function}", {"case": case, "worker_id": f"w{number}", "plan": fields, **own})
        for number, own in enumerate(arguments)
    ]
    return workers.call(calls)


@pytest.mark.parametrize(
    ("case", "layout"),
    [*((replace(CASE, freezing=freezing), LAYOUT) for freezing in ((), ((3, 2),), ((2, 5),))), (IN_CELLS, IN_SLICES)],
    ids=str,
)
def test_a_late_commit_has_the_bits_of_one_in_time(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    late = everywhere(warm_workers, "commit_late", [{}, {}, {}], case, layout)
    runs = run_series(warm_workers, case, [Segment(layout, case.steps, domains=DOMAINS)], score=False)
    in_time = copies_of(runs, f"after {case.steps}")
    for number, answer in enumerate(late):
        assert answer["once"] == {unit: held[number] for unit, held in in_time.items() if number in held}
        moved = {unit for unit, digest in answer["once"].items() if digest != answer["before"][unit]}
        assert moved == {unit for unit in answer["once"] if unit >= case.freeze_point_at(case.steps)}
        assert answer["twice"] == answer["once"], "a second commit of a step changes nothing"
        assert answer["whole"] == sorted(answer["once"])
        assert answer["left"] == []
    assert {unit for answer in late for unit in answer["whole"]} == set(range(NUM_UNITS))


def test_a_torn_unit_stays_torn(warm_workers: WarmWorkers) -> None:
    plan = fresh_plan(warm_workers)
    own, kept_unit = plan.placement.units_of("w1")[0], plan.replicas_kept_by("w1")[-1]
    answers = everywhere(warm_workers, "commit_late", [{}, {"torn": (own, kept_unit)}, {}])
    needed = set(plan.needs("w1"))
    assert set(answers[1]["whole"]) == needed - {own, kept_unit}
    for other in (answers[0], answers[2]):
        for unit in set(answers[1]["whole"]) & other["once"].keys():
            assert answers[1]["once"][unit] == other["once"][unit], "what was whole has everybody's bits"


def test_a_step_that_is_given_up_leaves_no_gradient(warm_workers: WarmWorkers) -> None:
    assert everywhere(warm_workers, "drop_prepared", [{}, {}, {}]) == [[], [], []]
