"""One real cluster for all tests of this folder: started once, whole again and with a namespace of its own for each test.

FROSTLINE_TEST_KUBECONFIG names a given cluster, on which only those tests run that need no more than its API server.
FROSTLINE_REQUIRE_CLUSTER=1: no programs is a failure, not a skip.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import NoTools
from tests.cluster.cluster import Cluster
from tests.cluster.given_cluster import GivenCluster
from tests.cluster.releases import Release
from tests.cluster.warm_nodes import WarmNodes

GIVEN, REQUIRED = os.environ.get("FROSTLINE_TEST_KUBECONFIG", ""), os.environ.get("FROSTLINE_REQUIRE_CLUSTER", "") == "1"


@pytest.fixture(scope="session")
def our_cluster() -> Iterator[Cluster]:
    if GIVEN:
        pytest.skip(f"needs nodes and a control plane of its own, not the cluster of {GIVEN}")
    try:
        cluster = Cluster()
    except NoTools as error:
        if REQUIRED:
            pytest.fail(f"FROSTLINE_REQUIRE_CLUSTER=1, but there is no test cluster: {error}")
        pytest.skip(f"NO TEST CLUSTER, so nothing here is shown on a real API server: {error}")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(our_cluster: Cluster) -> Iterator[Cluster]:
    """Yield the tests' own cluster; it is healed after each test."""
    yield our_cluster
    our_cluster.heal()


@pytest.fixture(scope="session")
def warm_nodes(our_cluster: Cluster) -> Iterator[WarmNodes]:
    nodes = WarmNodes(our_cluster)
    yield nodes
    nodes.stop()


@pytest.fixture
def release(cluster: Cluster, warm_nodes: WarmNodes, namespace: str, tmp_path: Path) -> Release:
    """Return a release of the chart, not installed yet; it is deleted with its namespace."""
    warm_nodes.heal()
    return Release(cluster, namespace, tmp_path, warm_nodes.alone)


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest) -> Cluster | GivenCluster:
    """Return a cluster of which only the API server is used: the tests' own, or the given one."""
    return GivenCluster(GIVEN) if GIVEN else request.getfixturevalue("our_cluster")


@pytest.fixture
def namespace(api_server: Cluster | GivenCluster) -> Iterator[str]:
    name = api_server.new_namespace()
    yield name
    api_server.delete_namespace(name)
