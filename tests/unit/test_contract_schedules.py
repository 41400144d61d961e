"""The registry of schedules: built-in ones, entry points with and without figures, and figures that are counted."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from frostline_contract import schedules
from frostline_contract.operations import Kind, Operation
from frostline_contract.schedule_figures import held_at_most
from frostline_contract.schedules import BUILT_IN, Schedule, schedule_named
from tests.split_backwards import split_1f1b

MODULE = """
from frostline_contract.schedule_figures import Figures
from frostline_contract.schedules import Schedule


def triples(pp_rank, pp_degree, virtual_stages, num_microbatches):
    return [(forward, pp_rank, m) for forward in (True, False) for m in range(num_microbatches)]


with_figures = Schedule(triples, Figures(lambda *shape: 2, lambda *step: 0.5, fills=False))
wrong = Schedule(lambda *shape: [("send", 0, 0)])
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with three schedules."""
    (tmp_path / "own_orders.py").write_text(MODULE)
    info = tmp_path / "own_orders-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-orders\nVersion: 1.0\n")
    points = (
        "[frostline.schedules]\nbare = own_orders:triples\nwith_figures = own_orders:with_figures\nwrong = own_orders:wrong\n"
    )
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    schedules._added.cache_clear()
    yield
    schedules._added.cache_clear()


@pytest.mark.usefixtures("installed")
def test_an_entry_point_is_an_order_in_triples_or_a_schedule_with_figures() -> None:
    bare, reported = schedule_named("bare"), schedule_named("with_figures")
    wanted = [Operation(kind, 1, m) for kind in (Kind.FORWARD, Kind.BACKWARD) for m in range(2)]
    assert bare.operations(1, 2, 1, 2) == reported.operations(1, 2, 1, 2) == wanted
    assert bare.figures is None
    assert bare.known_figures.in_flight(0, 2, 1, 5) == 5
    assert reported.known_figures.in_flight(0, 2, 1, 5) == 2
    assert reported.known_figures.bubble(0, [1.0], [1.0], 1, 5) == 0.5


@pytest.mark.usefixtures("installed")
def test_a_schedule_tells_computations_only() -> None:
    with pytest.raises(ValueError, match=r"a schedule holds .*send.*: messages come by lowering"):
        schedule_named("wrong").operations(0, 1, 1, 1)


@pytest.mark.usefixtures("installed")
def test_an_unknown_schedule_is_named_with_all_known_ones() -> None:
    words = rf"'zigzag'; known: {', '.join(BUILT_IN)}, bare, with_figures, wrong.*where the controller plans"
    with pytest.raises(ValueError, match=words):
        schedule_named("zigzag")


def split_backwards(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
    """1F1B whose gradients of weights fill the time in which the rank would wait at the step's end."""
    return split_1f1b(pp_rank, pp_degree, virtual_stages, num_microbatches, held=pp_rank)


def test_counted_figures_see_what_a_split_backward_gains_and_holds() -> None:
    """By hand, 2 ranks of 4 micro-batches with forward 1 s and both gradients 1 s each: 1F1B takes 15 s, this 13 s."""
    fused, split = BUILT_IN["1f1b"].known_figures, Schedule(split_backwards).known_figures
    times = ([1.0, 1.0], [2.0, 2.0], 1, 4)
    assert fused.bubble(0, *times) == 3.0
    assert split.bubble(0, *times) == 1.0
    assert [split.in_flight(r, 2, 1, 4) for r in (0, 1)] == [2, 2]
    assert [fused.in_flight(r, 2, 1, 4) for r in (0, 1)] == [2, 1]


def test_counting_says_where_an_order_waits_for_ever() -> None:
    backwards = Schedule(lambda *shape: BUILT_IN["gpipe"].operations(*shape)[:: -1 if shape[0] == 0 else 1])
    with pytest.raises(ValueError, match="waits for ever"):
        backwards.known_figures.bubble(0, [1.0, 1.0], [1.0, 1.0], 1, 2)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_slices_in_flight_are_what_the_order_holds(name: str) -> None:
    schedule = schedule_named(name)
    for pp_degree, micro_batches, slices in product(range(1, 5), range(1, 7), range(2, 6)):
        for pp_rank in range(pp_degree):
            order = schedule.operations(pp_rank, pp_degree, 1, micro_batches, slices)
            held = held_at_most(order, lambda _: 1.0) / slices
            assert schedule.in_flight(pp_rank, pp_degree, 1, micro_batches, slices) == held
