"""Everything that the chart renders, by the API of each Kubernetes version that it is for."""

import copy
import os
import sys

import pytest

from tests.chart.rendering import CHART, EVERYTHING, REQUIRED, Json, Release, render
from tests.cluster import openapi
from tests.cluster.binaries import NoTools

SETTINGS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "everything": EVERYTHING,
    "external-redis": (
        'cache.addresses=["redis.example.com:6379"]',
        'kubernetes.cache_secret="shared"',
        'kubernetes.storage={"access_mode":"ReadWriteOnce","node":"n"}',
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _schemas() -> None:
    try:
        openapi.obtain(lambda text: print(text, file=sys.stderr))
    except NoTools as error:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("version", openapi.SUMS)
def test_every_object_is_as_the_api_says(version: str, settings: tuple[str, ...]) -> None:
    objects = render(*settings).objects
    assert len(objects) > 18
    assert [mistake for one in objects for mistake in openapi.mistakes(one, version)] == []


CLAIMS = ("placement.workers_per_pod=8", "kubernetes.trainer.gpus=8", 'kubernetes.trainer.gpu_device_class="gpu.nvidia.com"',
          'kubernetes.trainer.capabilities.add=["IPC_LOCK"]')  # fmt: skip
"""What older versions have not."""


@pytest.mark.parametrize("version", [one for one in openapi.SUMS if [int(part) for part in one.split(".")] >= [1, 34]])
def test_claims_of_devices_are_as_the_api_says(version: str) -> None:
    assert [mistake for one in render(*CLAIMS).objects for mistake in openapi.mistakes(one, version)] == []


def test_the_oldest_version_is_the_one_that_the_chart_asks_for() -> None:
    oldest = min(openapi.SUMS, key=lambda version: [int(part) for part in version.split(".")])
    assert f'kubeVersion: ">={oldest.rpartition(".")[0]}.0-0"' in (CHART / "Chart.yaml").read_text()


def _trainers(found: Release) -> Json:
    return copy.deepcopy(found.get("StatefulSet", "digits-trainer"))


def test_the_schemas_see_mistakes() -> None:
    for version in openapi.SUMS:
        unknown = _trainers(render())
        unknown["spec"]["template"]["spec"]["containers"][0]["comand"] = ["x"]
        assert "'comand' was unexpected" in openapi.mistakes(unknown, version)[0]
        typed = _trainers(render())
        typed["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "30"
        assert "'30' is not of type 'integer'" in openapi.mistakes(typed, version)[0]
        missing = _trainers(render())
        del missing["spec"]["selector"]
        assert "'selector' is a required property" in openapi.mistakes(missing, version)[0]
    monitor = copy.deepcopy(render(*EVERYTHING).get("ServiceMonitor", "digits-metrics"))
    monitor["spec"]["endpoints"][0]["prot"] = "metrics"
    assert "'prot' was unexpected" in openapi.mistakes(monitor, "1.36.3")[0]
    assert openapi.mistakes({"apiVersion": "v2", "kind": "Pod"}, "1.36.3") == ["Kubernetes 1.36.3 has no Pod of v2"]


def test_a_field_of_a_later_version_is_seen_in_an_earlier_one() -> None:
    later = copy.deepcopy(render().get("Pod", "digits-check"))
    later["spec"]["resources"] = {"limits": {"cpu": "1"}}  # of a whole pod: since 1.32
    assert openapi.mistakes(later, "1.36.3") == []
    assert openapi.mistakes(later, "1.29.15") != []
