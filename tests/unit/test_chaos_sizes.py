"""The request of a person for a number of workers that must stand when a chaos case ends."""

import pytest

from tests.chaos.acts import Act
from tests.chaos.sizes import Asked, may_stand

SCALE, RESIZE = "scale", "resize"


@pytest.mark.parametrize(
    ("asked", "stand"),
    [
        ([], set()),
        ([(RESIZE, 3, None)], set()),
        ([(SCALE, 3, 4)], {3}),
        ([(SCALE, 3, 4), (SCALE, 2, 3)], {2}),
        ([(SCALE, 3, 4), (SCALE, 3, 3)], {3}),
        ([(SCALE, 4, 4)], set()),
        ([(RESIZE, 2, None), (SCALE, 3, 4)], {3}),
        ([(SCALE, 3, 4), (RESIZE, 2, None)], {2, 3}),
    ],
    ids=["nothing", "no scale", "one", "the newer", "the same again", "no change", "over a resize", "a resize after it"],
)
def test_the_newest_scale_request_stands_or_a_later_resize(asked: list[tuple[str, int, int | None]], stand: set[int]) -> None:
    assert may_stand(requests(asked), 1) == stand


def test_a_scale_request_counts_pods_and_a_resize_workers() -> None:
    assert may_stand(requests([(SCALE, 2, 3), (RESIZE, 5, None)]), 2) == {4, 5}


def requests(asked: list[tuple[str, int, int | None]]) -> list[Asked]:
    """Return requests, by kind, number and the number that they replaced, with their records."""
    return [
        (Act(kind, step, value=value), {"time_seconds": float(step), "replaced": value if replaced is None else replaced})
        for step, (kind, value, replaced) in enumerate(asked)
    ]
