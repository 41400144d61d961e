"""The policies without rails: Eq. (1) against hand-worked cases, the schedules against the papers' tables."""

import math

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frostline_controller.decisions.inputs import blocks_frozen, freeze_point_of, whole_blocks
from frostline_controller.decisions.policies import gradient_change, information_per_flop, schedule
from frostline_controller.decisions.policies.gradient_argmin import equation_one, propose, scores_of
from frostline_controller.decisions.registry import BUILT_IN, find_policy
from tests.unit.controller.freezing_run import INTERVAL, decision, entry, inputs_of, simulate

RISING = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
FALLING = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("frozen", "scores", "alpha", "result", "cap", "argmin"),
    [
        (0.0, RISING, 1 / 3, 1.0, 2.0, 1),  # the front block is frozen as well, else nothing would ever freeze
        (0.0, FALLING, 1 / 3, 2.0, 2.0, 6),  # the last block: the cap decides
        (0.0, [3, 1, 2, 4, 5, 6], 1 / 2, 2.0, 3.0, 2),  # below the cap: the gradient decides
        (0.0, [3, 2, 1, 4, 5, 6], 1 / 2, 3.0, 3.0, 3),  # both agree
        (2.0, [0, 0, 3, 1, 4, 5], 1 / 2, 4.0, 4.0, 4),  # frozen blocks report 0 and are skipped
        (2.0, [0, 0, 1, 1, 1, 1], 1 / 2, 3.0, 4.0, 3),  # equal norms: the foremost
        (2.5, [0, 0, 0, 9, 8, 7], 1 / 5, 3.2, 3.2, 6),  # real-valued: three blocks are frozen, the cap grows from 2.5
        (6.0, RISING, 1 / 3, 6.0, 6.0, 6),  # nothing is left
    ],
)
def test_equation_one_by_hand(frozen, scores, alpha, result, cap, argmin):
    nomination = equation_one(frozen, scores, alpha)
    assert nomination.frozen == pytest.approx(result, abs=1e-12)
    assert nomination.cap == pytest.approx(cap, abs=1e-12)
    assert nomination.argmin == argmin


@pytest.mark.parametrize(
    ("alpha", "table"),
    [(1 / 5, [3, 5, 6, 8, 9, 9, 10, 10, 11]), (1 / 3, [4, 7, 9, 10, 11, 11, 12, 12, 12]), (1 / 2, [6, 9, 11, 12])],
)
def test_equation_one_where_the_cap_always_decides_follows_the_closed_form(alpha, table):
    """Rounding only at the end: with alpha 1/3 there are 11 blocks at interval 6, not 12, and it does not stall at 10."""
    falling = [float(norm) for norm in range(12, 0, -1)]
    _, decisions = simulate(
        inputs_of(entry(1, falling), policy={"alpha": alpha}, only=()), len(table), lambda k, _, f: entry(k, falling, f)
    )
    assert [blocks_frozen(made.freeze_point) for made in decisions] == table


def test_equation_one_says_who_decided():
    cap = propose(inputs_of(entry(1, FALLING)))
    assert cap.freeze_point == 3
    assert "block 6 has the smallest gradient norm (1)" in cap.reason
    assert "the argmin names the last block, so the cap alone decided" in cap.reason
    gradient = propose(inputs_of(entry(1, RISING)))
    assert gradient.freeze_point == 2
    assert gradient.reason.endswith("0 + 0.3333 x 6 = 2: 1 blocks; the gradient decided")
    middle = propose(inputs_of(entry(1, [5, 5, 5, 1, 5, 5])))
    assert middle.freeze_point == 3
    assert middle.reason.endswith(
        "block 4 has the smallest gradient norm (1); cap 0 + 0.3333 x 6 = 2: 2 blocks; the cap alone decided"
    )


def test_equation_one_starts_from_what_is_frozen_where_a_rail_or_a_late_decision_held_it():
    held = propose(inputs_of(entry(1, FALLING), entry(2, FALLING), entry(3, FALLING)))
    assert held.freeze_point == 3, "two intervals without effect must not let the cap run away"
    commanded = propose(inputs_of(entry(1, FALLING), entry(2, FALLING, freeze_point=5)))
    assert commanded.freeze_point == 6
    assert "cap 4 + 0.3333 x 2 = 4.667" in commanded.reason
    voided = propose(inputs_of(entry(1, FALLING), entry(2, FALLING, freeze_point=3), entry(3, FALLING, freeze_point=3)))
    assert "cap 2 + 0.3333 x 4 = 3.333" in voided.reason


def test_equation_one_never_scores_embedding_or_head():
    proposal = propose(inputs_of(entry(1, FALLING, embedding=0.0, head=0.0)))
    assert "block 6 has the smallest" in proposal.reason


def test_scores_can_be_divided_by_the_root_of_the_parameter_count():
    sizes = entry(1, [2.0, 3.0], unit_parameters=(1, 4, 100, 1))
    assert scores_of(sizes, normalise=False) == (2.0, 3.0)
    assert scores_of(sizes, normalise=True) == (1.0, 0.3)
    wide = [2.0, 3.0, 2.5, 2.5]
    parameters = (1, 4, 100, 4, 4, 1)
    assert propose(inputs_of(entry(1, wide, unit_parameters=parameters), policy={"alpha": 0.5})).freeze_point == 2
    normalised = {"alpha": 0.5, "normalise_by_parameters": True}
    assert propose(inputs_of(entry(1, wide, unit_parameters=parameters), policy=normalised)).freeze_point == 3


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=24),
    st.floats(0.01, 0.99),
    st.integers(0, 24),
    st.floats(0, 1, exclude_max=True),
)
def test_equation_one_stays_within_cap_and_model(scores, alpha, blocks, fraction):
    frozen = min(blocks + fraction, float(len(scores)))
    nomination = equation_one(frozen, scores, alpha)
    assert frozen <= nomination.frozen <= max(frozen, nomination.cap) <= len(scores) + 1e-9
    assert whole_blocks(nomination.frozen) <= len(scores)


@pytest.mark.parametrize(
    ("alpha", "table"),
    [(1 / 5, [0, 3, 5, 6, 8, 9, 9, 10, 10, 11]), (1 / 3, [0, 4, 7, 9, 10, 11, 11, 12, 12, 12]), (1 / 2, [0, 6, 9, 11, 12])],
)
def test_closed_form_is_the_released_table(alpha, table):
    assert [schedule.closed_form(12, alpha, epoch) for epoch in range(len(table))] == table
    template = inputs_of(entry(1, [1.0] * 12), policy={"name": "schedule", "alpha": alpha}, only=())
    _, decisions = simulate(template, len(table) - 1, lambda k, _, f: entry(k, [1.0] * 12, f))
    assert [blocks_frozen(made.freeze_point) for made in decisions] == table[1:]


def test_freezeout_and_linear_schedules():
    # t_i = 0.8 + 0.2 * i / 4 = 0.80, 0.85, 0.90, 0.95; cubed 0.512, 0.614, 0.729, 0.857.
    assert [schedule.freezeout(4, 0.8, p, cubed=False) for p in (0.79, 0.8, 0.84, 0.85, 0.9, 1.0)] == [0, 1, 1, 2, 3, 4]
    assert [schedule.freezeout(4, 0.8, p, cubed=True) for p in (0.5, 0.512, 0.62, 0.73, 0.86)] == [0, 1, 2, 3, 4]
    assert [schedule.linear(4, p) for p in (0.0, 0.24, 0.25, 0.5, 0.99, 1.0)] == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("form", "number", "blocks", "words"),
    [
        ("linear", 20, 2, "schedule linear: linear at 50.0% of the run = 2 of 4 blocks"),
        ("freezeout_linear", 34, 2, "freezeout_linear with t0 0.8 at 85.0%"),
        ("freezeout_cubed", 34, 3, "freezeout_cubed with t0 0.8 at 85.0%"),
    ],
)
def test_schedule_by_progress(form, number, blocks, words):
    proposal = schedule.propose(inputs_of(entry(number, [1.0] * 4), policy={"name": "schedule", "form": form}))
    assert proposal.freeze_point == freeze_point_of(blocks)
    assert words in proposal.reason


def test_gradient_change_finds_the_first_block_that_still_changes():
    # eta = 0.10, 0.05, 0.50, 0.40: the median is 0.25, block 3 is the first at or above it.
    earlier, later = entry(1, [10, 20, 10, 10]), entry(2, [9, 21, 5, 14])
    proposal = gradient_change.propose(inputs_of(earlier, later))
    assert proposal.freeze_point == freeze_point_of(2)
    assert "block 3 is the first with change 0.5 >= 0.25" in proposal.reason
    assert "(a percentile always nominates)" in proposal.reason
    strictest = gradient_change.propose(inputs_of(earlier, later, policy={"percentile": 0.0}))
    assert strictest.freeze_point == 0


def test_gradient_change_never_takes_the_last_block_nor_frozen_ones():
    last_changes_most = gradient_change.propose(inputs_of(entry(1, [1, 1, 1]), entry(2, [1, 1, 2]), policy={"percentile": 100.0}))
    assert last_changes_most.freeze_point == freeze_point_of(2)
    one_left = gradient_change.propose(inputs_of(entry(1, [0, 0, 1], 3), entry(2, [0, 0, 2], 3)))
    assert one_left.freeze_point == 3
    assert "1 active block left" in one_left.reason
    first = gradient_change.propose(inputs_of(entry(1, [1, 1, 1])))
    assert (first.freeze_point, first.reason) == (0, "gradient change: needs two intervals, there is one")
    from_zero = gradient_change.relative_changes(entry(1, [0, 0]), entry(2, [0, 3]), range(1, 3))
    assert from_zero == [0.0, math.inf]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40), st.floats(0, 100))
@example([0.0] * 8 + [1e9] * 18, 28.0)
def test_percentile_is_numpys(values, percent):
    """Each rounds the place between two values in its own way, by a few ulps of up to len(values): that share of a step between
    two values is no difference."""
    rounded = 1e-15 * len(values) * (max(values) - min(values))
    expected = pytest.approx(numpy.percentile(values, percent), rel=1e-12, abs=1e-9 + rounded)
    assert gradient_change.percentile(values, percent) == expected


def test_information_per_flop_by_hand():
    # Units: embedding 0 FLOPs, four blocks of 1000, head 100: a whole step costs 3 x 4100 = 12300, a frozen block saves 2000.
    norms, flops = (0.0, 1.0, 2.0, 3.0, 3.0, 1.0), (0, 1000, 1000, 1000, 1000, 100)
    values = [information_per_flop.information_per_flop(norms, flops, point) for point in (0, 2, 3, 4)]
    assert values == pytest.approx([24.0, 23 * 12300 / 10300, 19 * 12300 / 8300, 10 * 12300 / 6300])
    best = information_per_flop.propose(inputs_of(entry(1, [1, 2, 3, 3], embedding=0.0, head=1.0)))
    assert best.freeze_point == freeze_point_of(2)
    assert best.reason == "information per FLOP rises by 17.3% with 2 blocks frozen"
    front_learns = information_per_flop.propose(inputs_of(entry(1, [9, 2, 1, 1], embedding=0.0)))
    assert front_learns.freeze_point == 0
    assert "greatest with the 0 blocks that are frozen" in front_learns.reason
    uncounted = information_per_flop.propose(inputs_of(entry(1, [1, 2, 3, 3], unit_forward_flops=())))
    assert uncounted.reason == "information per FLOP: 0 FLOP counts for 6 units"


@pytest.mark.parametrize(("only", "points"), [(("cap_total", "least_move"), [4, 5, 5]), (("cap_total",), [3, 4, 5])])
def test_the_cap_leaves_room_for_the_least_blocks_of_a_move(only, points):
    rails = {"least_blocks": 3, "total_fraction": 0.67}
    template = inputs_of(entry(1, [1.0] * 6), policy={"alpha": 0.25}, rails=rails, only=only)
    _, decisions = simulate(template, 3, lambda k, _, f: entry(k, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], f))
    assert [made.freeze_point for made in decisions] == points
    assert (", raised to 3 by freeze.rails.least_blocks: 3 blocks" in decisions[0].reason) == ("least_move" in only)


def test_manual_follows_its_points_down_too():
    manual, rails = {"name": "manual", "points": {2: 3, 4: 5, 6: 0}}, {"total_fraction": 0.67}
    template = inputs_of(entry(1, [1.0] * 6), policy=manual, rails=rails)
    statistics, decisions = simulate(template, 7, lambda k, _, f: entry(k, [1.0] * 6, f))
    assert [made.freeze_point for made in decisions] == [0, 3, 3, 5, 5, 0, 0]
    assert [made.kind for made in decisions] == ["keep", "freeze", "keep", "freeze", "keep", "unfreeze", "keep"]
    assert decisions[1].reason == "manual: freeze point 3 from decision 2 on"
    assert statistics[2].freeze_point == 3


def test_replay_follows_the_surviving_lineage():
    other = (
        decision(1, 2, "freeze"),
        decision(2, 3, "freeze", void=True),
        decision(3, 4, "freeze"),
        decision(4, 2, "rollback", lineage=1, rollback_to_step=3 * INTERVAL + 2),
        decision(4, 2, "keep", lineage=1),
        decision(5, 3, "freeze", lineage=1),
    )
    template = inputs_of(entry(1, [1.0] * 6), policy={"name": "replay", "replay_of": "runs/other"}, replayed=other)
    _, decisions = simulate(template, 6, lambda k, _, f: entry(k, [1.0] * 6, f))
    assert [made.freeze_point for made in decisions] == [2, 2, 2, 2, 3, 3]
    assert {made.lineage for made in decisions} == {0}
    assert decisions[4].reason.startswith("replay of decision 5 (gradient_argmin: ")


def test_a_replay_is_bit_for_bit_the_first_run_and_needs_no_rails():
    norms = [5.0, 4.0, 3.0, 2.0, 1.0, 6.0]
    rails = {"warmup_fraction": 0.25, "total_fraction": 0.67}
    _, first = simulate(inputs_of(entry(1, norms), rails=rails), 30, lambda k, _, f: entry(k, norms, f, guard=[1.0, 1.0]))
    again = inputs_of(entry(1, norms), policy={"name": "replay"}, replayed=tuple(first))
    _, second = simulate(again, 30, lambda k, _, f: entry(k, norms, f))
    assert [made.freeze_point for made in first] == [made.freeze_point for made in second]
    assert max(made.freeze_point for made in first) == freeze_point_of(4)


@pytest.mark.parametrize("name", ["gradient_argmin", "gradient_change", "information_per_flop"])
def test_measured_policies_hold_where_a_number_is_not_finite(name):
    for broken in ({"unit_gradient_norms": (1.0, math.nan, 1.0, 1.0, 1.0)}, {"loss_mean": math.inf}, {"accepted_steps": 0}):
        ill = entry(2, [1, 2, 3], freeze_point=2, **broken)
        proposal = find_policy(name).propose(inputs_of(entry(1, [1, 2, 3], freeze_point=2), ill))
        assert proposal.freeze_point == 2
        assert "cannot be evaluated: interval 2" in proposal.reason


def test_unknown_policies_are_refused_by_name():
    with pytest.raises(ValueError, match=r"freeze.policy.name is 'magic'; known are .*gradient_argmin.*schedule"):
        find_policy("magic")
    by_measurement = ["gradient_argmin", "gradient_change", "information_per_flop", "plasticity"]
    assert sorted(BUILT_IN) == sorted([*by_measurement, "manual", "replay", "schedule", "stairs"])
