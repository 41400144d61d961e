"""The controller's list-and-watch on a real API server that restarts, forgets and refuses."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_controller.cluster.kubernetes.api import Api, ApiError
from frostline_controller.cluster.kubernetes.object_cache import ObjectCache
from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.controller_account import grant, in_cluster_api
from tests.cluster.namespaces import WithNamespaces
from tests.cluster.waiting import stays, wait_for
from tests.cluster.workloads import path_of, pod, pod_spec

START_SECONDS = 20.0


class CountedApi(Api):
    """An API that counts lists and watches, by how they began."""

    lists = 0
    watches: list[str]

    def get(self, path: str, **query: object) -> Json:
        self.lists += 1
        return super().get(path, **query)

    def watch(self, path: str, **query: object) -> Iterator[Json]:
        self.watches.append(str(query["resourceVersion"]))
        return super().watch(path, **query)


@pytest.fixture
def api(api_server: WithNamespaces, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedApi:
    grant(api_server, namespace)
    api = in_cluster_api(api_server, namespace, tmp_path / "account", monkeypatch)
    api.__class__, api.watches = CountedApi, []
    return api


@pytest.fixture
def follow(api: CountedApi, namespace: str) -> Iterator[Callable[[], ObjectCache]]:
    """Return a function that starts a cache of the namespace's pods."""
    started: list[ObjectCache] = []

    def start() -> ObjectCache:
        started.append(ObjectCache(api, path_of(namespace, "pods"), {}, changed.set))
        started[-1].start()
        return started[-1]

    changed = threading.Event()
    yield start
    for cache in started:
        cache.stop()


def test_objects_come_change_and_go(follow: Callable[[], ObjectCache], api_server: WithNamespaces, namespace: str) -> None:
    cache = follow()
    assert cache.objects(START_SECONDS) == {}
    _make(api_server, namespace, "one")
    wait_for(lambda: "one" in cache.objects(0), "it to be heard of")
    api_server.rest.merge(path_of(namespace, "pods", "one"), {"metadata": {"labels": {"x": "1"}}})
    wait_for(lambda: cache.objects(0)["one"]["metadata"].get("labels") == {"x": "1"}, "its change to be heard of")
    api_server.rest.delete(path_of(namespace, "pods", "one"), gracePeriodSeconds=0)
    wait_for(lambda: cache.objects(0) == {}, "its end to be heard of")


def test_an_older_answer_never_replaces_what_is_known(
    follow: Callable[[], ObjectCache], api_server: WithNamespaces, namespace: str
) -> None:
    cache = follow()
    cache.objects(START_SECONDS)
    old = _make(api_server, namespace, "one")
    new = api_server.rest.merge(path_of(namespace, "pods", "one"), {"metadata": {"labels": {"x": "1"}}})
    cache.put(new)
    cache.put(old)
    assert cache.objects(0)["one"]["metadata"]["labels"] == {"x": "1"}
    api_server.rest.delete(path_of(namespace, "pods", "one"), gracePeriodSeconds=0)
    wait_for(lambda: cache.objects(0) == {}, "its end to be heard of")
    cache.put(new)
    assert cache.objects(0) == {}, "the answer to a write came after the news that it is gone"


def test_an_api_server_restart_is_survived(
    follow: Callable[[], ObjectCache], api: CountedApi, cluster: Cluster, namespace: str
) -> None:
    cache = follow()
    cache.objects(START_SECONDS)
    _make(cluster, namespace, "before")
    wait_for(lambda: "before" in cache.objects(0), "it to be heard of")
    cluster.plane.stop_api_server()
    assert "before" in cache.objects(0), "what is known stays known"
    cluster.plane.start_api_server()
    _make(cluster, namespace, "after")
    wait_for(lambda: {"before", "after"} <= cache.objects(0).keys(), "what came after the restart")
    assert api.lists >= 2


def test_a_watch_from_a_forgotten_version_lists_again(
    follow: Callable[[], ObjectCache], api: CountedApi, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch breaks, etcd forgets the past and the server restarts meanwhile: 410, and a list."""
    monkeypatch.setattr("frostline_controller.cluster.kubernetes.api.WATCH_SECONDS", 1)
    cache = follow()
    cache.objects(START_SECONDS)
    _make(cluster, namespace, "one")
    wait_for(lambda: len(api.watches) >= 2, "the watch to begin again by itself")
    assert api.lists == 1, "a watch that ends goes on from where it was"
    first = api.watches[0]
    for count in range(3):
        cluster.rest.merge(path_of(namespace, "pods", "one"), {"metadata": {"labels": {"x": str(count)}}})
    cluster.plane.stop_api_server()
    cluster.plane.compact()
    cluster.plane.start_api_server()
    wait_for(lambda: api.lists >= 2, "another list", 60)
    with pytest.raises(ApiError) as gone:
        list(api.watch(path_of(namespace, "pods"), resourceVersion=first))
    assert gone.value.status == 410
    wait_for(lambda: cache.objects(0)["one"]["metadata"].get("labels") == {"x": "2"}, "the newest state")


def test_a_cache_without_a_first_word_says_why(api: CountedApi, namespace: str) -> None:
    cache = ObjectCache(api, path_of(namespace, "secrets"), {}, lambda: None)
    cache.start()
    wait_for(lambda: api.lists >= 2, "it to try again")
    with pytest.raises(ApiError) as refused:
        cache.objects(0.1)
    assert refused.value.status == 403
    cache.stop()


def test_a_token_file_is_read_again_and_may_be_away_for_a_moment(
    follow: Callable[[], ObjectCache], api_server: WithNamespaces, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet replaces the token file now and then; here the file is read for every call."""
    monkeypatch.setattr("frostline_controller.cluster.kubernetes.api.WATCH_SECONDS", 1)
    monkeypatch.setattr("frostline_controller.cluster.kubernetes.api.TOKEN_SECONDS", 0.0)
    cache = follow()
    cache.objects(START_SECONDS)
    token = tmp_path / "account" / "token"
    text = token.read_text()
    token.unlink()
    _make(api_server, namespace, "without")
    assert wait_for(lambda: "without" in cache.objects(0), "it to follow with the token that it has")
    token.write_text("wrong")
    time.sleep(2.5)  # longer than a watch
    _make(api_server, namespace, "unauthorized")
    assert stays(lambda: "unauthorized" not in cache.objects(0), 1.0)
    token.write_text(text)
    assert wait_for(lambda: "unauthorized" in cache.objects(0), "it to follow again")


def _make(server: WithNamespaces, namespace: str, name: str) -> Json:
    """Make a pod that no node runs."""
    spec = pod_spec(spec={"nodeSelector": {"no": "node"}})
    return server.rest.create(path_of(namespace, "pods"), pod(name, spec))
