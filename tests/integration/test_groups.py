"""Process groups can be broken off at any moment, and leave no resources behind."""

from typing import Any

import pytest

from frostline_contract.mesh import Mesh
from frostline_contract.plan import Plan
from tests.group_member import COLLECTIVES
from tests.hand_made_plans import Layout, lone_plan
from tests.in_time import fastest_of_three, in_time
from tests.warm_workers import Call, WarmWorkers

REFORMATIONS = 30
SETTLED = 6
"""Re-formations after which allocators and lazy imports have settled."""
GROWTH_KIB = 6 << 10


def plans_for(workers: WarmWorkers, count: int, number: int) -> list[dict[str, Any]]:
    """Return plans of (2, 2) or (1, n); the worker with global rank 0, the store's host, changes from plan to plan."""
    ports = workers.call([Call("tests.engine_member:store_port", {})] * count)
    plans = []
    for turn in range(number):
        names = tuple((turn + place) % count for place in range(count))
        layout = Layout(2, count // 2, workers=names) if count % 2 == 0 else Layout(1, count, workers=names)
        made: Plan = lone_plan(layout.placement(0))
        made = made.model_copy(update={"store_host": "127.0.0.1", "store_port": ports[names[0]]})
        plans.append(made.model_dump(mode="json"))
    return plans


@pytest.mark.wide
def test_thirty_reformations_leave_descriptors_threads_and_memory_flat(warm_workers: WarmWorkers) -> None:
    """Each generation has another store; every third is broken off by one member in the middle of a collective."""
    plans = plans_for(warm_workers, 4, REFORMATIONS)
    broken = [turn % 3 == 2 for turn in range(REFORMATIONS)]
    calls = [
        Call("tests.group_member:reform", {"worker_id": f"w{number}", "plans": plans, "broken": broken}) for number in range(4)
    ]
    for number, counted in enumerate(warm_workers.call(calls)):
        descriptors, threads, resident = zip(*counted, strict=True)
        # The minimum of a few: a store closes its end of a connection a moment after the other side.
        assert min(descriptors[-SETTLED:]) <= min(descriptors[:SETTLED]), f"worker {number}: {descriptors}"
        assert min(threads[-SETTLED:]) <= min(threads[:SETTLED]), f"worker {number}: {threads}"
        assert resident[-1] - resident[SETTLED] < GROWTH_KIB, f"worker {number}: {resident}"


@pytest.mark.parametrize(
    "degrees",
    [{"dp": 1, "pp": 2, "tp_columns": 2}, {"dp": 2, "pp": 1, "tp_depth": 2}, {"dp": 1, "pp": 1, "tp_columns": 2, "tp_depth": 2}],
    ids=str,
)
def test_there_is_a_group_along_each_axis_of_any_mesh(degrees: dict[str, int], warm_workers: WarmWorkers) -> None:
    """With columns and levels there is one of the whole tensor-parallel group as well."""
    (plan,) = plans_for(warm_workers, 4, 1)
    plan["placement"] |= {"degrees": degrees}
    mesh = Mesh.of(degrees)
    found = warm_workers.call(
        [Call("tests.group_member:sum_along", {"worker_id": f"w{number}", "plan": plan}) for number in range(4)]
    )
    whole = ["tp"] if {"tp_columns", "tp_depth"} <= set(degrees) else []
    for global_rank, along in enumerate(found):
        assert along == {
            axis: (mesh.coordinate_on(axis, global_rank), sum(2**member for member in mesh.line(global_rank, axis)))
            for axis in (*degrees, *whole)
        }


@pytest.mark.parametrize("collective", COLLECTIVES)
@fastest_of_three
def test_a_wait_for_a_stopped_member_ends_at_once(collective: str, warm_workers: WarmWorkers) -> None:
    (plan,) = plans_for(warm_workers, 3, 1)
    arguments = {"plan": plan, "collective": collective}
    calls = [Call("tests.group_member:wait_for_stopped", arguments | {"worker_id": f"w{number}"}) for number in range(3)]
    waited = warm_workers.call(calls)
    assert max(waited) > 0.0, "the first wait that ends is ended by its own member's interruption"
    in_time(max(waited), 0.5, "the end of a wait")


@pytest.mark.parametrize("hosts_store", [True, False])
@fastest_of_three
def test_forming_groups_with_nobody_is_broken_off_at_once(hosts_store: bool, warm_workers: WarmWorkers) -> None:
    """The store is there but no other member comes, or the store's host is gone."""
    (plan,) = plans_for(warm_workers, 2, 1)
    if not hosts_store:
        plan["store_port"] = 1
    name = plan["placement"]["workers"][0 if hosts_store else 1]
    ((seconds, error),) = warm_workers.call([Call("tests.group_member:interrupt_forming", {"worker_id": name, "plan": plan})])
    assert "not wanted" in error
    in_time(seconds, 3.5 if hosts_store else 1.5, error)
