"""When the guard split is scored: as often as the job says, and at each interval's end while a freeze is watched."""

from frostline_contract.job import parse_job
from frostline_contract.plan import Decision
from frostline_trainer.step.committing import guard_is_due


def due(every: int, decisions: list[Decision], off: tuple[str, ...] = (), initial_units: int = 0) -> list[int]:
    """Return the intervals among the first twelve at the end of which the guard split is scored."""
    values = {
        "model": {"family": "vit"},
        "task": {"kind": "image_classification"},
        "data": {"source": "digits"},
        "training": {"steps": 100},
        "evaluation": {"every_intervals": every},
        "freeze": {"initial_units": initial_units, "rails": {"guard_intervals": 2, "off": list(off)}},
    }
    job = parse_job(values)
    return [interval for interval in range(1, 13) if guard_is_due(job, 8, decisions, interval)]


def adopted(*points: int) -> list[Decision]:
    """Return decisions 1, 2, ... with these freeze points."""
    return [
        Decision(number=number, interval=number, effective_step=8 * number + 3, freeze_point=point)
        for number, point in enumerate(points, start=1)
    ]


def test_every_so_many_intervals_and_while_a_freeze_is_watched():
    assert due(1, []) == list(range(1, 13))
    assert due(5, adopted(0, 0, 0)) == [5, 10]
    # Decision 6 freezes: intervals 7 and 8 are the first under it, and the guard has two readings.
    assert due(5, adopted(0, 0, 0, 0, 0, 3)) == [5, 7, 8, 10]


def test_what_is_no_freeze_is_not_watched():
    assert due(0, adopted(3)) == [], "0 is never"
    assert due(5, adopted(3, 3, 0), off=("guard",)) == [5, 10]
    assert due(5, adopted(2, 2, 0), initial_units=2) == [5, 10], "frozen from step 1, and unfrozen"
    assert due(5, adopted(3), initial_units=2) == [2, 3, 5, 10]
