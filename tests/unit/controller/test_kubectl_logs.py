"""`kubectl frostline logs`: the pods that are asked for, pods without a log, and a name that none of them has."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from frostline_controller.cli.kubectl import logs
from frostline_controller.cluster.kubernetes.api import ApiError, NotFound
from frostline_controller.cluster.kubernetes.release import Release as KubernetesRelease
from frostline_controller.local_run import exit_codes


class Release:
    """A release of three pods, each with a log of two lines."""

    name = "digits"

    def __init__(self, *waiting: str) -> None:
        """waiting: pods that have no log yet."""
        self.waiting, self.containers = waiting, dict[str, str]()

    def pods(self) -> list[dict[str, Any]]:
        roles = {"digits-controller-0": "controller", "digits-trainer-0": "trainer", "digits-trainer-1": "trainer"}
        return [{"metadata": {"name": name, "labels": {"app.kubernetes.io/component": role}}} for name, role in roles.items()]

    def log(self, pod: str, container: str, lines: int) -> str:
        self.containers[pod] = container
        if pod in self.waiting:
            raise ApiError(400, f'GET /{pod}/log: 400 container "{container}" is waiting to start: ImagePullBackOff')
        return "one\ntwo"


@pytest.mark.parametrize(
    ("pod", "shown"),
    [
        ("", ["digits-controller-0", "digits-trainer-0", "digits-trainer-1"]),
        ("trainer", ["digits-trainer-0", "digits-trainer-1"]),
        ("digits-trainer-1", ["digits-trainer-1"]),
    ],
)
def test_a_pod_is_named_by_itself_or_by_its_role(pod: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(Release(), Namespace(pod=pod, lines=2)) == exit_codes.DONE  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [f"{name}: {line}" for name in shown for line in ("one", "two")]


def test_a_name_that_no_pod_has_is_refused_with_those_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(Release(), Namespace(pod="trainer-1", lines=2)) == exit_codes.USER_MISTAKE  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "kubectl frostline: --pod trainer-1: is no pod or role of digits; there: controller, trainer, digits-controller-0, "
        "digits-trainer-0, digits-trainer-1\n"
    )


def test_a_pod_without_a_log_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    release = Release("digits-controller-0", "digits-trainer-0")
    assert logs(release, Namespace(pod="", lines=2)) == exit_codes.DONE  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        'digits-controller-0: (no log: 400 container "controller" is waiting to start: ImagePullBackOff)',
        'digits-trainer-0: (no log: 400 container "trainer" is waiting to start: ImagePullBackOff)',
        "digits-trainer-1: one",
        "digits-trainer-1: two",
    ]
    assert logs(release, Namespace(pod="controller", lines=2)) == exit_codes.FAILED  # type: ignore[arg-type]


def test_the_chart_s_container_is_asked_for_not_one_that_was_injected() -> None:
    release = Release()
    assert logs(release, Namespace(pod="", lines=2)) == exit_codes.DONE  # type: ignore[arg-type]
    assert release.containers == {
        "digits-controller-0": "controller", "digits-trainer-0": "trainer", "digits-trainer-1": "trainer",
    }  # fmt: skip


def test_the_api_server_is_asked_for_that_container() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    api = SimpleNamespace(text=lambda path, **query: asked.append((path, query)) or "one")
    assert KubernetesRelease(cast(Any, api), "lab", "digits").log("digits-trainer-0", "trainer", 3) == "one"
    assert asked == [("/api/v1/namespaces/lab/pods/digits-trainer-0/log", {"container": "trainer", "tailLines": 3})]


class Empty(Release):
    """A release without pods, or no release at all."""

    def __init__(self, found: bool) -> None:
        super().__init__()
        self.found = found

    def pods(self) -> list[dict[str, Any]]:
        return []

    def stateful_set(self) -> dict[str, Any]:
        if self.found:
            return {}
        raise NotFound(404, "no release digits in namespace lab")


def test_no_pod_at_all_is_a_failure_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(Empty(found=True), Namespace(pod="", lines=2)) == exit_codes.FAILED  # type: ignore[arg-type]
    assert capsys.readouterr().err == "kubectl frostline: digits has no pod\n"
    with pytest.raises(NotFound, match="no release digits"):
        logs(Empty(found=False), Namespace(pod="", lines=2))  # type: ignore[arg-type]
