"""The answers to a pod's probes: joined when all its workers have, alive as long as the agent answers."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from frostline_trainer.process.pod_health import serve_pod_health


class Probed:
    """missing: local ranks that have not joined."""

    def __init__(self) -> None:
        self.missing: list[int] = [0, 1]
        self.server = serve_pod_health("127.0.0.1", 0, lambda: self.missing)

    def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.server_address[1]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def probed() -> Iterator[Probed]:
    made = Probed()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize("path", ["/started", "/ready"])
def test_ready_means_that_every_worker_has_joined(probed: Probed, path: str) -> None:
    assert probed.get(path) == (503, "not joined yet: local ranks [0, 1]\n")
    probed.missing = [1]
    assert probed.get(path) == (503, "not joined yet: local ranks [1]\n")
    probed.missing = []
    assert probed.get(path) == (200, "joined\n")


def test_alive_does_not_depend_on_workers(probed: Probed) -> None:
    assert probed.get("/live") == (200, "alive\n")


def test_an_unknown_path_names_the_known_ones(probed: Probed) -> None:
    status, text = probed.get("/steps")
    assert status == 404 and "/live, /started, /ready" in text
