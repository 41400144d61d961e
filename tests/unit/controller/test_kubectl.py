"""The arguments of `kubectl frostline`, and what it says without a controller's answer."""

import argparse
from typing import Any, cast

import pytest

from frostline_contract.annotations import REQUESTED_WORKERS, STATE
from frostline_controller.cli import kubectl
from frostline_controller.cli.kubectl import build_parser, resize, status
from frostline_controller.cluster.kubernetes.api import ApiError, NotFound
from frostline_controller.cluster.kubernetes.release import Release
from frostline_controller.local_run import exit_codes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("resize digits 99999999999", "'99999999999' is no whole number and at most 2147483647"),
        ("resize digits 65537", "65537 is more than the 65536 workers that a run may have"),
        ("resize digits -1", "-1"),
        ("freeze digits 99999999999", "'99999999999' is no whole number and at most 2147483647"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_before_anything_is_asked(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(words.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_most_and_the_least_workers_may_be_asked_for() -> None:
    for number in (0, 65536):
        assert build_parser().parse_args(["resize", "digits", str(number)]).number == number


class Asked:
    """A release as the API server shows it, which notes what is asked of it and answers at once."""

    def __init__(self, **annotations: str) -> None:
        self._annotations, self.requests = annotations, list[int]()

    def annotations(self) -> dict[str, str]:
        return self._annotations

    def events(self) -> list[Any]:
        return []

    def request_workers(self, workers: int) -> None:
        self.requests.append(workers)

    def answers(self, before: set[str], seconds: float) -> list[str]:
        return ["annotation: 2 workers, answered by 2"]


def test_the_same_number_of_workers_again_is_answered_without_a_controller(capsys: pytest.CaptureFixture[str]) -> None:
    release = Asked(**{REQUESTED_WORKERS: "3", STATE: "suspended"})
    for number, said, requests in (
        (3, "3 workers have been asked for before: nothing changes; the run is suspended", []),
        (2, "annotation: 2 workers, answered by 2", [2]),
    ):
        assert resize(cast(Release, release), argparse.Namespace(number=number)) == exit_codes.DONE
        assert (capsys.readouterr().out.strip(), release.requests) == (said, requests)


class Watched:
    """A release whose annotations are read one after the other; an error is raised."""

    name = "digits"

    def __init__(self, *answers: str | ApiError) -> None:
        self._answers = list(answers)

    def annotations(self) -> dict[str, str]:
        answer = self._answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return {STATE: answer}

    def pods(self) -> list[Any]:
        return []

    events = pods


def watched(*answers: str | ApiError, watch: bool = True) -> int:
    return status(cast(Release, Watched(*answers)), argparse.Namespace(watch=watch))


@pytest.mark.parametrize("code", [0, 429, 500, 503])
def test_a_watch_goes_on_after_a_poll_that_had_no_answer(
    code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "WATCH_SECONDS", 0.0)
    assert watched("running", ApiError(code, "connection reset"), ApiError(code, "refused"), "completed") == exit_codes.DONE
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith("digits")] == ["digits: running", "digits: completed"]
    assert shown.err.splitlines() == [f"kubectl frostline: {text}; asking again" for text in ("connection reset", "refused")]


def test_a_first_poll_without_an_answer_and_a_refusal_end_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "WATCH_SECONDS", 0.0)
    for watch, answers, text in (
        (True, (ApiError(0, "no such host"), "completed"), "no such host"),
        (True, ("running", NotFound(404, "no release digits"), "completed"), "no release"),
        (True, ("running", ApiError(403, "forbidden"), "completed"), "forbidden"),
        (False, (ApiError(0, "connection reset"), "completed"), "connection reset"),
    ):
        with pytest.raises(ApiError, match=text):
            watched(*answers, watch=watch)
