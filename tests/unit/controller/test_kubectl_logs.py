"""`kubectl frostline logs`: the pods that are asked for, and a name that none of them has."""

from argparse import Namespace
from typing import Any

import pytest

from frostline_controller.cli.kubectl import logs
from frostline_controller.local_run import exit_codes


class Release:
    """A release of three pods, each with a log of two lines."""

    name = "digits"

    def pods(self) -> list[dict[str, Any]]:
        roles = {"digits-controller-0": "controller", "digits-trainer-0": "trainer", "digits-trainer-1": "trainer"}
        return [{"metadata": {"name": name, "labels": {"app.kubernetes.io/component": role}}} for name, role in roles.items()]

    def log(self, pod: str, lines: int) -> str:
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
