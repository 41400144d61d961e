"""Every rail alone, its reason asserted; each switched off by its name."""

import math

import pytest

from frostline_contract.job.freezing import ElasticSection
from frostline_contract.job.training import EvaluationSection
from frostline_controller.decisions.decide import check_freezing, decide
from frostline_controller.decisions.inputs import FreezeInputs, Proposal
from frostline_controller.decisions.rails import RAIL_NAMES, apply_rails, deepest_freeze_point
from frostline_controller.decisions.registry import Policy
from tests.unit.controller.freezing_run import INTERVAL, decision, entry, inputs_of

FALLING = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def fixed_policy(*points: int) -> Policy:
    """Return a policy that proposes points[k - 1] on interval k, and the last point from then on."""
    return Policy("fixed", lambda inputs: Proposal(points[min(len(inputs.statistics), len(points)) - 1], "fixed"))


def clip(inputs: FreezeInputs, *points: int):
    policy = fixed_policy(*points)
    return apply_rails(inputs, policy.propose(inputs).freeze_point, policy)


def history(*freeze_points: int, **fields) -> list:
    return [entry(number, FALLING, point, **fields) for number, point in enumerate(freeze_points, start=1)]


def test_without_rails_the_wish_is_taken():
    assert clip(inputs_of(*history(0), only=()), 6) == (6, "")


@pytest.mark.parametrize(
    "rails", [{}, {"total_fraction": 0.9}, {"total_fraction": 1.0, "last_blocks": 1}, {"total_fraction": 0.0}]
)
@pytest.mark.parametrize("only", [(), ("cap_total",), ("last_blocks",), ("cap_total", "last_blocks")])
def test_the_deepest_freeze_point_is_where_the_rails_stop_a_policy_that_wants_everything(rails, only):
    inputs = inputs_of(*history(0), only=only, rails=rails)
    assert deepest_freeze_point(inputs.freeze.rails, inputs.num_units, fixed_policy(7)) == clip(inputs, 7).freeze_point


def test_nothing_ever_leaves_the_model_whatever_is_off():
    assert clip(inputs_of(*history(0), only=()), 99) == (7, "bounds: 99 is outside 0 to 7")
    assert clip(inputs_of(*history(3), only=()), -5) == (0, "bounds: -5 is outside 0 to 7")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"unit_gradient_norms": (1, 1, math.nan, 1, 1, 1, 1, 1)}, "nan: interval 1: gradient norm of unit 2 is nan (3 -> 0)"),
        ({"loss_mean": math.inf}, "nan: interval 1: mean loss is inf, learning rate is 0.001 (3 -> 0)"),
        ({"accepted_steps": 0}, "nan: interval 1 has no accepted step (3 -> 0)"),
    ],
)
def test_nan(fields, words):
    assert clip(inputs_of(entry(1, FALLING, **fields), only=("nan",)), 3) == (0, words)


def test_warmup():
    # A quarter of 400 steps is 100; decision 9 takes effect at step 93, decision 10 at 103.
    on = {"only": ("warmup",), "rails": {"warmup_fraction": 0.25}}
    early, late = inputs_of(*history(*[0] * 9), **on), inputs_of(*history(*[0] * 10), **on)
    assert clip(early, 3) == (0, "warmup: step 93 is within the first 100 steps (3 -> 0)")
    assert clip(late, 3) == (3, "")
    assert clip(inputs_of(*history(3), **on), 0) == (0, ""), "the warm-up does not forbid unfreezing"


def test_cooldown_after_a_freeze_and_after_a_rollback():
    on = {"only": ("cooldown",)}
    note = "cooldown: decision 1 changed the freeze point, 1 interval(s) without a change follow"
    assert clip(inputs_of(*history(0, 2), **on), 3) == (2, f"{note} (3 -> 2)")
    assert clip(inputs_of(*history(0, 2), **on), 0) == (2, f"{note} (0 -> 2)")
    assert clip(inputs_of(*history(0, 2, 2), **on), 3) == (3, "")
    assert clip(inputs_of(*history(0, 2, 2), rails={"cooldown_intervals": 2}, **on), 3).freeze_point == 2
    back = (decision(1, 2, "freeze"), decision(2, 0, "rollback", lineage=1, rollback_to_step=INTERVAL + 2))
    again = [entry(1, FALLING), entry(2, FALLING, lineage=1)]
    assert clip(inputs_of(*again, decisions=back, **on), 3) == (0, f"{note} (3 -> 0)")
    assert clip(inputs_of(*again, entry(3, FALLING, lineage=1), decisions=back, **on), 3) == (3, "")


def test_min_active():
    on = {"only": ("min_active",)}
    assert clip(inputs_of(*history(0), **on), 3) == (0, "min_active: unit 0 has learnt for 12 steps of 20 (3 -> 0)")
    assert clip(inputs_of(*history(0, 0), **on), 3) == (3, "")
    # Unfrozen by decision 3, from step 33 on: units 2 and 3 have learnt 20 steps at decision 5 (step 53), not at decision 4.
    assert clip(inputs_of(*history(4, 4, 4, 2), **on), 4) == (2, "min_active: unit 2 has learnt for 10 steps of 20 (4 -> 2)")
    assert clip(inputs_of(*history(4, 4, 4, 2, 2), **on), 4) == (4, "")
    assert clip(inputs_of(*history(0), rails={"min_active_steps": 12}, **on), 3) == (3, "")


def test_rearm_on_a_drop_or_a_restart_of_the_learning_rate():
    rates = [1e-3, 1e-3, 4e-4, 4e-4, 4e-4]
    entries = [entry(k, FALLING, learning_rate=rate) for k, rate in enumerate(rates, start=1)]
    note = "rearm: the learning rate went from 0.001 to 0.0004 in interval 3"
    on = {"only": ("rearm",)}
    assert clip(inputs_of(*entries[:2], **on), 3) == (3, "")
    assert clip(inputs_of(*entries[:3], **on), 3) == (0, f"{note}, 0 of 2 intervals have passed since (3 -> 0)")
    assert clip(inputs_of(*entries[:4], **on), 3) == (0, f"{note}, 1 of 2 intervals have passed since (3 -> 0)")
    assert clip(inputs_of(*entries, **on), 3) == (3, "")
    restart = [entry(1, FALLING, learning_rate=1e-4), entry(2, FALLING, learning_rate=1e-3)]
    assert clip(inputs_of(*restart, **on), 3).freeze_point == 0
    gentle = [entry(1, FALLING, learning_rate=1e-3), entry(2, FALLING, learning_rate=6e-4)]
    assert clip(inputs_of(*gentle, **on), 3) == (3, "")


def test_patience_takes_what_consecutive_intervals_all_asked_for():
    on = {"only": ("patience",)}
    assert clip(inputs_of(*history(0), **on), 3) == (0, "patience: 1 of 2 intervals have asked (3 -> 0)")
    assert clip(inputs_of(*history(0, 0), **on), 3, 3) == (3, "")
    assert clip(inputs_of(*history(0, 0), **on), 0, 3) == (0, "patience: the last 2 intervals asked for 0, 3 (3 -> 0)")
    assert clip(inputs_of(*history(0, 0), **on), 2, 4) == (2, "patience: the last 2 intervals asked for 2, 4 (4 -> 2)")
    assert clip(inputs_of(*history(0, 0, 0), rails={"patience": 3}, **on), 4, 2, 5) == (
        2,
        "patience: the last 3 intervals asked for 4, 2, 5 (5 -> 2)",
    )


def test_patience_starts_anew_after_a_rollback_but_not_after_a_restore():
    back = (decision(2, 2, "freeze"), decision(3, 0, "rollback", lineage=1, rollback_to_step=22))
    redone = [*history(0, 0), entry(3, FALLING, lineage=1)]
    assert (
        clip(inputs_of(*redone, decisions=back, only=("patience",)), 2).note == "patience: 1 of 2 intervals have asked (2 -> 0)"
    )
    assert clip(inputs_of(*redone, only=("patience",)), 2) == (2, "")


def test_unfreezing_has_a_patience_of_its_own():
    on = {"only": ("unfreeze",)}
    assert clip(inputs_of(*history(4, 4), **on), 2) == (4, "unfreeze: 2 of 3 intervals have asked (2 -> 4)")
    assert clip(inputs_of(*history(4, 4, 4), **on), 2) == (2, "")
    assert clip(inputs_of(*history(4, 4, 4), **on), 2, 5, 2) == (
        4,
        "unfreeze: the last 3 intervals asked for 2, 5, 2 (2 -> 4)",
    )
    assert clip(inputs_of(*history(4, 4, 4), **on), 0, 3, 0) == (3, "unfreeze: the last 3 intervals asked for 0, 3, 0 (0 -> 3)")
    assert clip(inputs_of(*history(4), only=()), 2) == (2, "")


def test_absolute_compares_each_block_with_its_own_peak():
    entries = [entry(1, [4.0, 8.0, 8.0, 8.0]), entry(2, [2.0, 4.0, 5.0, 1.0])]
    strict = inputs_of(*entries, rails={"absolute_change": 0.5}, only=("absolute",))
    assert clip(strict, 5) == (3, "absolute: block 3 has norm 5, above 0.5 of its peak 8 (5 -> 3)")
    assert clip(inputs_of(*entries, only=("absolute",)), 5) == (5, ""), "1.0 asks for no more than not being at a new peak"
    rising = inputs_of(entry(1, [1.0, 1.0]), entry(2, [2.0, 1.0]), rails={"absolute_change": 0.9}, only=("absolute",))
    assert clip(rising, 3) == (0, "absolute: block 1 has norm 2, above 0.9 of its peak 2 (3 -> 0)")


def test_cap_interval():
    on = {"only": ("cap_interval",)}
    assert clip(inputs_of(*history(0), **on), 5) == (2, "cap_interval: at most 1 block(s) by one decision (5 -> 2)")
    assert clip(inputs_of(*history(3), **on), 5) == (4, "cap_interval: at most 1 block(s) by one decision (5 -> 4)")
    assert clip(inputs_of(*history(0), rails={"blocks_per_interval": 2}, **on), 5).freeze_point == 3


def test_cap_total():
    on, rails = {"only": ("cap_total",)}, {"total_fraction": 0.67}
    assert clip(inputs_of(*history(0), rails=rails, **on), 7) == (5, "cap_total: at most 4 of 6 blocks (67%) (7 -> 5)")
    assert clip(inputs_of(*history(6), rails=rails, **on), 7) == (6, "cap_total: at most 4 of 6 blocks (67%) (7 -> 6)")
    assert clip(inputs_of(*history(0), rails={"total_fraction": 0.0}, **on), 3).freeze_point == 0


def test_last_blocks():
    on = {"only": ("last_blocks",)}
    assert clip(inputs_of(*history(0), **on), 7) == (5, "last_blocks: the last 2 of 6 blocks never freeze (7 -> 5)")
    assert clip(inputs_of(*history(0), rails={"last_blocks": 4}, **on), 7).freeze_point == 3
    assert clip(inputs_of(*history(0), rails={"last_blocks": 9}, **on), 7).freeze_point == 0


def test_baseline_waits_for_a_guard_reading():
    on = {"only": ("baseline", "quarantine", "guard")}
    note = "baseline: there is no guard reading yet that the freeze could be held against (3 -> 0)"
    assert clip(inputs_of(*history(0), **on), 3) == (0, note)
    assert clip(inputs_of(*history(0, guard=[1.0, math.nan]), **on), 3) == (0, note)
    assert clip(inputs_of(*history(0, guard=[1.0, 1.0]), **on), 3) == (3, "")
    unwatched = inputs_of(*history(0), evaluation=EvaluationSection(every_intervals=0), **on)
    assert clip(unwatched, 3) == (3, "baseline: evaluation.every_intervals is 0, so no guard watches this freeze")


def test_without_the_guard_nobody_waits_for_its_readings_or_keeps_its_quarantine():
    back = (decision(1, 2, "freeze"), decision(2, 0, "rollback", lineage=1, rollback_to_step=12))
    redone = [*history(0), entry(2, FALLING, lineage=1)]
    pace = ("warmup", "cooldown", "patience")
    assert clip(inputs_of(*redone, decisions=back, rails={"off": (*pace, "guard")}), 2) == (2, "")
    assert clip(inputs_of(*redone, decisions=back, rails={"off": (*pace, "baseline")}), 2).note.startswith("quarantine: ")
    assert clip(inputs_of(*redone, decisions=back, rails={"off": (*pace, "quarantine")}), 2).note.startswith("baseline: ")


def test_quarantine_outlives_the_lineage():
    back = (decision(1, 4, "freeze"), decision(2, 0, "rollback", lineage=1, rollback_to_step=12))
    redone = [*history(0), entry(2, FALLING, lineage=1)]
    held = inputs_of(*redone, decisions=back, only=("quarantine", "guard"))
    assert clip(held, 6) == (3, "quarantine: freeze point 4 was rolled back, nothing from there on freezes again (6 -> 3)")
    assert clip(held, 3) == (3, "")
    without_the_freeze = inputs_of(*redone, decisions=back[1:], only=("quarantine", "guard"))
    assert clip(without_the_freeze, 6).freeze_point == 0, "one block more than the rollback left is taken for the boundary"
    void = (back[0], back[1].model_copy(update={"void": True}))
    assert clip(inputs_of(*history(0), decisions=void, only=("quarantine", "guard")), 6) == (6, "")
    assert clip(inputs_of(*redone, decisions=back, only=()), 6) == (6, "")


def test_every_rail_is_switched_off_by_its_name_alone():
    """With one rail off the proposal meets all the others; the rail that is off never appears in the reason."""
    ill = entry(1, FALLING, accepted_steps=0, learning_rate=1.0)
    for name in RAIL_NAMES:
        result = clip(inputs_of(ill, rails={"off": (name,)}), 7)
        assert f"{name}:" not in result.note, result.note
        assert result.freeze_point == 0


def test_unknown_rails_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"freeze.rails.off holds 'speed'; the rails are nan, warmup, .*, guard"):
        check_freezing(inputs_of(*history(0), rails={"off": ("nan", "speed")}))
    with pytest.raises(ValueError, match=r"has 8 at decision 3; .* 8 units allows freeze points 0 to 7"):
        check_freezing(inputs_of(*history(0), policy={"name": "manual", "points": {3: 8}}))
    with pytest.raises(ValueError, match="interval 1 hold 8 gradient norms and 8 parameter counts; the model has 9 units"):
        inputs_of(*history(0), num_units=9)


def test_a_persons_word_is_kept_within_the_caps_only():
    points = {"name": "manual", "points": {1: 7}}
    made = decide(inputs_of(*history(0), policy=points))
    assert made.freeze_point == 4
    assert made.reason == ("manual: freeze point 7 from decision 1 on; cap_total: at most 3 of 6 blocks (50%) (7 -> 4)")
    ill = decide(inputs_of(entry(1, FALLING, accepted_steps=0), policy=points))
    assert (ill.freeze_point, ill.kind) == (0, "keep")


def test_an_operators_request_is_decided_at_once_and_outlives_older_points():
    asked = decide(inputs_of(*history(0), requested=3))
    assert (asked.kind, asked.freeze_point, asked.policy) == ("freeze", 3, "operator")
    assert asked.reason == "operator: freeze point 3 was asked for by command"
    points = {"name": "manual", "points": {1: 5, 4: 2}}
    statistics = history(0, 5, 3)
    made = (decision(1, 5, "freeze"), decision(2, 3, "unfreeze").model_copy(update={"policy": "operator"}))
    overridden = decide(inputs_of(*statistics, decisions=made, policy=points))
    assert overridden.reason == "manual: the operator's decision 2 overrides freeze point 5"
    next_point = decide(inputs_of(*statistics, entry(4, FALLING, 3), decisions=made, policy=points))
    assert next_point.freeze_point == 2


def test_freezing_switched_off_keeps_everything_learning():
    made = decide(inputs_of(*history(0), elastic=ElasticSection(freeze=False), requested=3))
    assert (made.kind, made.freeze_point, made.reason) == ("keep", 0, "elastic.freeze is false: nothing freezes")
