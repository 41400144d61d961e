"""Install, upgrade and rollback under both Helms, after the controller has changed the StatefulSet: no conflict, no silent
revert."""

import pytest

from frostline_contract.annotations import FENCE, PLAN, STATE
from tests.chart.rendering import HELMS
from tests.cluster.releases import Release, long
from tests.cluster.waiting import wait_for


@pytest.mark.parametrize("helm", HELMS)
def test_an_upgrade_leaves_what_the_controller_has_written(release: Release, helm: str) -> None:
    release.helm = helm
    release.install(**long(600))  # nobody waits for its end
    release.wait_for_step(10)
    release.cluster.kubectl("scale", "statefulset", "digits-trainer", "--replicas=3", namespace=release.namespace)
    wait_for(lambda: release.replicas() == 3 and len(release.pods("trainer")) == 3, "three pods")
    release.upgrade(kubernetes={"trainer": {"labels": {"team": "vision"}}})
    assert release.replicas() == 3
    annotations = release.annotations()
    assert {PLAN, FENCE, STATE} <= annotations.keys() and annotations[STATE] == "running"
    release.upgrade(placement={"hysteresis": 0.2})
    wait_for(lambda: release.said("changed: placement.hysteresis"), "the change to be told")
    release.rollback()
    wait_for(lambda: len(release.said("changed: placement.hysteresis")) == 2, "the change back to be told")
    assert release.replicas() == 3
    release.wait_for_step(release.step() + 10)
    assert release.state() == "running", "it trains on"


@pytest.mark.parametrize("helm", HELMS)
def test_helm_test_finds_a_release_well(release: Release, helm: str) -> None:
    release.helm = helm
    release.install(**long(600))
    release.wait_for_step(5)
    assert "Succeeded" in release.helm_test()
    reported = "".join(
        file.read_text() for node in release.cluster.nodes.values() for file in node.folder.glob("digits-check*/*.log")
    )
    for line in ("ok      controller", "ok      authentication", "ok      cache"):
        assert line in reported
