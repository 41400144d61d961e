"""Shapes, leaves, intervals, seeds and the learning rate: arithmetic that all services share."""

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job.training import OptimizerSection, ScheduleSection
from frostline_contract.learning_rate import learning_rate
from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_contract.seeds import seed_of
from frostline_contract.shape import ParallelShape, deal_leaves, leaf_micro_batches
from tests.even_bounds import even_bounds

degrees = st.integers(1, 9)


@given(degrees, degrees, st.integers(1, 4))
def test_ranks_are_a_bijection_and_stages_are_dealt_once(pp_degree: int, dp_degree: int, virtual_stages: int) -> None:
    assume(pp_degree > 1 or virtual_stages == 1)
    shape = ParallelShape(pp_degree, dp_degree, virtual_stages)
    places = [(shape.dp_rank(g), shape.pp_rank(g)) for g in range(shape.world_size)]
    assert places == [(d, p) for d in range(dp_degree) for p in range(pp_degree)]
    assert [shape.global_rank(d, p) for d, p in places] == list(range(shape.world_size))
    assert sorted(s for p in range(pp_degree) for s in shape.stages_of(p)) == list(range(shape.num_stages))


@given(degrees, degrees, degrees)
def test_a_replicas_owners_have_its_places_among_all_owners(pp_degree: int, dp_degree: int, tp_degree: int) -> None:
    shape = ParallelShape(pp_degree, dp_degree, tp_columns=tp_degree)
    for pp_rank, dp_rank in itertools.product(range(pp_degree), range(dp_degree)):
        own = [shape.owners_of(pp_rank)[place] for place in shape.places_of_owners(dp_rank)]
        assert own == [owner for owner in shape.owners_of(pp_rank) if shape.dp_rank(owner) == dp_rank]


@pytest.mark.parametrize("values", [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_degrees_below_one_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ParallelShape(*values)


@pytest.mark.parametrize(
    ("shape", "freeze_point", "words"),
    [
        (ParallelShape(4, 1), 5, r"4 stages for 3 trainable units \(units 5 to 7\)"),
        (ParallelShape(2, 1, 2), 5, "4 stages for 3 trainable units"),
        (ParallelShape(1, 5), 0, "dp_degree 5 exceeds training.reduction_leaves 4"),
        (ParallelShape(3, 4), 5, None),
        (ParallelShape(1, 1, tp_columns=2), 0, "tp_columns 2 exceeds training.tensor_tiles.inner 1: each worker needs a tile"),
        (ParallelShape(1, 1, tp_columns=3), 0, "tp_columns is 3; only powers of two share the tiles of a block"),
        (ParallelShape(1, 1, tp_depth=2), 0, "tp_depth 2 exceeds training.tensor_tiles.hidden 1: each worker needs a tile"),
    ],
)
def test_shapes_that_do_not_fit(shape: ParallelShape, freeze_point: int, words: str | None) -> None:
    if words is None:
        assert shape.check_fits(num_units=8, freeze_point=freeze_point, reduction_leaves=4) is None
        return
    with pytest.raises(ValueError, match=words):
        shape.check_fits(num_units=8, freeze_point=freeze_point, reduction_leaves=4)


@given(st.integers(0, 6), st.data())
def test_leaves_are_whole_consecutive_and_even(exponent: int, data: st.DataObject) -> None:
    leaves = 2**exponent
    dp_degree = data.draw(st.integers(1, leaves))
    dealt = deal_leaves(leaves, dp_degree)
    assert [leaf for low, high in dealt for leaf in range(low, high)] == list(range(leaves))
    sizes = [high - low for low, high in dealt]
    assert len(dealt) == dp_degree
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 5), st.integers(0, 100))
def test_every_micro_batch_is_in_one_leaf(exponent: int, extra: int) -> None:
    leaves = 2**exponent
    num_microbatches = leaves + extra
    groups = [leaf_micro_batches(leaf, num_microbatches, leaves) for leaf in range(leaves)]
    assert [m for group in groups for m in group] == list(range(num_microbatches))
    assert all(len(group) >= 1 for group in groups)


@given(st.integers(1, 40), st.data())
def test_even_bounds_give_each_stage_a_trainable_unit(num_units: int, data: st.DataObject) -> None:
    freeze_point = data.draw(st.integers(0, num_units - 1))
    num_stages = data.draw(st.integers(1, num_units - freeze_point))
    bounds = even_bounds(num_units, freeze_point, num_stages)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, num_units, num_stages + 1)
    trainable = [high - max(low, freeze_point) for low, high in itertools.pairwise(bounds)]
    assert min(trainable) >= 1
    assert max(trainable) - min(trainable) <= 1


@given(st.integers(3, 9), st.integers(1, 30), st.integers(0, 200))
def test_the_calendar_agrees_with_itself(lag: int, longer: int, total: int) -> None:
    calendar = DecisionCalendar(lag + longer, lag, total)
    for step in range(1, total + 1):
        number = calendar.due_before(step)
        assert calendar.effective_step(number + 1) > step
        assert number == 0 or calendar.effective_step(number) <= step
        taken = number if number > calendar.due_before(step - 1) else None
        assert taken is None or calendar.effective_step(taken) == step
        assert calendar.due_after(step) == number + 1
        assert calendar.ends_interval(step) == (calendar.interval_of(step + 1) == calendar.interval_of(step) + 1)
        assert taken is None or calendar.interval_of(step - lag) == taken


@pytest.mark.parametrize(("interval", "lag", "words"), [(9, 2, "lag_steps is 2"), (4, 4, "longer than the lag"), (3, 5, "is 3")])
def test_calendars_that_cannot_be(interval: int, lag: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DecisionCalendar(interval, lag, 100)


def test_a_decision_takes_effect_lag_steps_after_its_interval() -> None:
    calendar = DecisionCalendar(interval_steps=10, lag_steps=3, total_steps=35)
    assert [calendar.effective_step(number) for number in (1, 2, 3)] == [13, 23, 33]
    assert [calendar.last_step_of(number) for number in (1, 2, 3)] == [10, 20, 30]
    assert [calendar.due_before(step) for step in (1, 12, 13, 22, 23)] == [0, 0, 1, 1, 2]
    assert calendar.due_before(1000) == 3, "after the last step nothing is due any more"


def test_seeds_are_stable_for_ever() -> None:
    assert seed_of("dropout", 0, 1, 0, 0) == 4295427040596686534
    assert seed_of("order", 0, 0) == 9038406707207529012
    assert seed_of("a", 1) != seed_of("a", "1")
    assert seed_of("a", 12, 3) != seed_of("a", 1, 23)


@given(st.lists(st.integers() | st.text(), min_size=1, max_size=5))
def test_seeds_fit_a_generator(name: list[int | str]) -> None:
    assert 0 <= seed_of(*name) < 2**63


def test_learning_rate_by_hand() -> None:
    optimizer = OptimizerSection(learning_rate=0.8)
    cosine = ScheduleSection(name="cosine", warmup_fraction=0.2, final_fraction=0.25)
    rates = [learning_rate(optimizer, cosine, step, 10) for step in range(1, 11)]
    assert rates[:2] == [0.4, 0.8]
    assert math.isclose(rates[5], 0.8 * (0.25 + 0.75 * 0.5)), "half way down the cosine"
    assert math.isclose(rates[9], 0.2)
    linear = ScheduleSection(name="linear", warmup_fraction=0.0)
    assert math.isclose(learning_rate(optimizer, linear, 5, 10), 0.4)
    assert learning_rate(optimizer, linear, 10, 10) == 0.0
    assert learning_rate(optimizer, ScheduleSection(name="constant", warmup_fraction=0.0), 7, 10) == 0.8


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.floats(0, 0.99),
    st.floats(0, 1),
    st.integers(1, 300),
    st.floats(1e-6, 1),
)
def test_learning_rate_stays_within_peak_and_floor(name: str, warm: float, final: float, total: int, peak: float) -> None:
    schedule = ScheduleSection(name=name, warmup_fraction=warm, final_fraction=final)
    rates = [learning_rate(OptimizerSection(learning_rate=peak), schedule, step, total) for step in range(1, total + 1)]
    top = rates.index(max(rates))
    assert all(0.0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    assert rates[:top] == sorted(rates[:top])
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(rates[top:]))


def placement() -> Placement:
    return Placement(pp_degree=2, dp_degree=2, stage_bounds=(0, 3, 8), leaf_bounds=(0, 4, 8), workers=("a", "b", "c", "d"))


def test_a_placement_says_who_holds_what() -> None:
    placed = placement()
    assert placed.units_of("c") == [0, 1, 2]
    assert placed.owners(5) == ["b", "d"]
    assert placed.units_of("stranger") == []
    assert list(placed.leaves_of(1)) == [4, 5, 6, 7]
    looped = Placement(
        pp_degree=2, dp_degree=1, virtual_stages=2, stage_bounds=(0, 1, 2, 3, 4), leaf_bounds=(0, 8), workers=("a", "b")
    )
    assert (looped.units_of("a"), looped.units_of("b")) == ([0, 2], [1, 3])


@given(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_generations_are_ordered_by_incarnation_then_counter(one: tuple[int, int], two: tuple[int, int]) -> None:
    first, second = (GenerationId(incarnation=i, counter=c) for i, c in (one, two))
    assert ((first < second), (first <= second), (first == second)) == (one < two, one <= two, one == two)


def test_a_plan_lists_participants_and_refuses_unknown_fields() -> None:
    fields = {"generation": GenerationId(incarnation=1, counter=2), "lineage": 0, "start": "continue", "freeze_point": 0}
    plan = Plan(**fields, placement=placement(), leavers=("e",))
    assert plan.participants == ("a", "b", "c", "d", "e")
    with pytest.raises(ValueError, match="extra_field"):
        Plan(**fields, placement=placement(), extra_field=1)


def test_one_rank_has_nothing_to_interleave_with() -> None:
    with pytest.raises(ValueError, match="virtual_stages is 2 with pp_degree 1"):
        ParallelShape(1, 4, 2)
