"""Links are measured by kind: within a machine and between machines, along pipelines and between replicas."""

import pytest
import torch

from frostline_trainer.step.device_clock import HostClock
from frostline_trainer.step.link import Endpoint, Links, _figures, _of_a_pair, measure_links
from tests import engine_member
from tests.forming import form_groups
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.simulated_members import in_threads

CPU = torch.device("cpu")


def links_of(layout: Layout, machines: str, levels: bool = False) -> list[Links]:
    """Return each member's measured links. machines: a letter for each global rank. levels: sums go over machines."""
    count, port = layout.pp_degree * layout.dp_degree, engine_member.store_port()
    plan = make_plan(Segment(layout, 1), None, [port] * count)

    def measure(index: int) -> Links:
        groups = form_groups(plan, f"w{index}", machine=machines[index] if levels else "")
        try:
            return measure_links(groups, plan.placement.shape.mesh, Endpoint(machines[index], CPU, HostClock()))
        finally:
            groups.close()

    return in_threads(measure, count)


@pytest.mark.parametrize(
    ("layout", "machines", "pipelines", "sums"),
    [
        (Layout(2, 2), "aabb", {"near"}, {"far"}),
        (Layout(2, 2), "abab", {"far"}, {"near"}),
        (Layout(2, 2), "aaaa", {"near"}, {"near"}),
        (Layout(4, 1), "aabb", {"near", "far"}, {"far"}),
        (Layout(1, 4), "aabb", {"near"}, {"far"}),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_every_member_measures_its_own_links_by_kind(layout: Layout, machines: str, pipelines: set[str], sums: set[str]) -> None:
    found = links_of(layout, machines)
    kinds = [(kind, link) for links in found for kind, link in (("near", links.near), ("far", links.far)) if link is not None]
    assert {kind for kind, link in kinds if link.bandwidth_bytes_per_second > 0} == pipelines
    assert {kind for kind, link in kinds if link.reduce_bandwidth_bytes_per_second > 0} == sums
    for _, link in kinds:
        assert (link.latency_seconds > 0) == (link.bandwidth_bytes_per_second > 0), "measured together or not at all"


def test_a_lone_worker_measures_nothing() -> None:
    assert links_of(Layout(1, 1), "a") == [Links()]


def test_sums_over_machines_are_measured_level_by_level() -> None:
    for links in links_of(Layout(1, 4), "aabb", levels=True):
        assert links.near is not None and links.far is not None
        assert links.near.reduce_bandwidth_bytes_per_second > 0 and links.far.reduce_bandwidth_bytes_per_second > 0


def test_a_sum_over_more_members_is_told_as_one_over_two() -> None:
    """The planner's rules: a vote has log2(n) rounds, and an exchange sends 2 (n - 1) / n of its buffer."""
    two, four = _of_a_pair(2, 1e-3, 3e-3), _of_a_pair(4, 2e-3, 5e-3)
    assert two == _figures("reduce_", 1e-3, 3e-3)
    assert four == pytest.approx(two), "twice the rounds, and one and a half times the bytes"
