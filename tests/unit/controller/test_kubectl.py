"""The arguments of `kubectl frostline`, and what it says without a controller's answer."""

import pytest

from frostline_controller.cli.kubectl import build_parser


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
