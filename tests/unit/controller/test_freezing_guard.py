"""The guard: its bound against scipy, breach and hold, rollback and lineages, quarantine, a rollback's place among decisions."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.lineage import Cuts, LineageStart
from frostline_contract.statistics import GuardReading
from frostline_controller.decisions.decide import decide
from frostline_controller.decisions.guard import Chance, breach, chance_of, compare, confidence_of
from frostline_controller.decisions.student_t import t_quantile, upper_tail
from frostline_controller.decisions.surviving import Change, changes, timeline
from tests.unit.controller.freezing_run import INTERVAL, LAG, decision, entry, inputs_of, simulate

FALLING = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
CALENDAR = DecisionCalendar(INTERVAL, LAG, 400)
LOW, HIGH = [1.0, 1.2, 0.8, 1.0], [1.5, 1.8, 1.2, 1.6]


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 10, 30, 100, 199, 1023, 100_000])
@pytest.mark.parametrize("probability", [0.51, 0.75, 0.9, 0.95, 0.99, 0.9999])
def test_t_quantile_is_scipys(probability, degrees):
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8)


@given(st.floats(0.0, 50.0), st.integers(1, 500))
def test_t_tail_is_scipys(t, degrees):
    assert upper_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-8, abs=1e-14)


def readings(before: list[float], after: list[float]) -> tuple[GuardReading, GuardReading]:
    return GuardReading(losses=tuple(before)), GuardReading(losses=tuple(after))


def test_the_bound_is_the_paired_t_interval():
    generator = random.Random(7)
    before = [generator.uniform(0.5, 1.5) for _ in range(64)]
    after = [loss + generator.gauss(0.05, 0.1) for loss in before]
    rises = [later - earlier for earlier, later in zip(before, after, strict=True)]
    expected = stats.ttest_rel(after, before, alternative="greater").confidence_interval(0.95).low
    result = compare(*readings(before, after), margin=0.02, confidence=0.95)
    assert result.bound == pytest.approx(expected, rel=1e-9)
    assert result.rise == pytest.approx(sum(rises) / 64)
    assert result.tolerated == pytest.approx(0.02 * sum(before) / 64)
    assert result.breached == (expected > result.tolerated)


def test_pairing_sees_what_two_means_would_not():
    """The samples' losses spread a hundred times wider than the rise: only the pairs show it."""
    before = [float(sample) for sample in range(1, 101)]
    after = [loss * 1.0 + 2.0 + 0.01 * (-1) ** sample for sample, loss in enumerate(before)]
    result = compare(*readings(before, after), margin=0.02, confidence=0.95)
    assert result.breached
    assert result.text == "guard loss +2 over 100 samples, lower bound +1.998 exceeds the tolerated 1.01"


def test_a_rise_within_the_margin_or_within_the_noise_holds():
    small = compare(*readings([1.0] * 50, [1.01] * 50), margin=0.02, confidence=0.95)
    assert not small.breached
    assert small.bound == pytest.approx(0.01)
    noisy = compare(*readings([1.0, 1.0, 1.0], [5.0, 0.5, 0.9]), margin=0.02, confidence=0.95)
    assert noisy.rise > 1.0
    assert not noisy.breached
    single = compare(*readings([1.0], [9.0]), margin=0.02, confidence=0.95)
    assert not single.breached, "one sample has no bound"
    ill = compare(*readings([1.0, 1.0], [1.0, math.nan]), margin=0.02, confidence=0.95)
    assert ill.breached
    with pytest.raises(ValueError, match="guard readings hold 2 and 3 samples"):
        compare(*readings([1.0, 1.0], [1.0, 1.0, 1.0]), margin=0.02, confidence=0.95)


def test_chance_is_what_readings_rise_by_without_a_freeze():
    losses = [2.0, 1.5, 1.6, 1.4, 9.0, 9.2, 1.3]
    points = [0, 0, 0, 0, 2, 2, 2]
    statistics = [
        entry(number, FALLING, point, guard=[loss, loss])
        for number, (loss, point) in enumerate(zip(losses, points, strict=True), start=1)
    ]
    # Before decision 4: -0.5, +0.1 of 1.55, -0.2. The jump to 9 lies across the freeze, the rise of 0.2 from there does not.
    assert chance_of(statistics, before=4) == Chance(pytest.approx(2 * (0.1 / 1.55) ** 2 / 3), rises=1, moves=3)
    assert chance_of(statistics, before=6) == Chance(
        pytest.approx(2 * ((0.1 / 1.55) ** 2 + (0.2 / 9.1) ** 2) / 4), rises=2, moves=4
    )
    assert chance_of(statistics[:1], before=4) == chance_of([], before=4) == Chance(), "one reading says nothing of chance"


def test_the_bound_has_both_kinds_of_chance():
    before, after = readings([1.0, 1.0, 1.0, 1.0], [1.2, 1.4, 1.2, 1.4])
    result = compare(before, after, margin=0.02, confidence=0.95, chance=Chance(0.01, rises=2, moves=6))
    of_samples = 4 * 0.1**2 / 3 / 4
    degrees = (of_samples + 0.01) ** 2 / (of_samples**2 / 3 + 0.01**2 / 2)
    assert result.bound == pytest.approx(0.3 - stats.t.ppf(0.95, degrees) * math.sqrt(of_samples + 0.01), rel=1e-9)
    assert result.text.endswith("exceeds the tolerated 0.02; without a freeze it rose by 0.1 by chance (6 readings)")


def noisy_run(generator: random.Random, harm: float, jumps: float = 0.05):
    """Twelve readings of 100 samples before a freeze and two after it; the weights' jumps move all samples together."""
    samples = [generator.uniform(0.05, 0.4) for _ in range(100)]
    made = (decision(12, 2, "freeze"),)
    statistics = []
    for number in range(1, 15):
        level = generator.gauss(0.0, jumps) + (harm if number > 12 else 0.0)
        losses = [max(0.0, sample + level + generator.gauss(0.0, 0.05)) for sample in samples]
        statistics.append(entry(number, FALLING, 2 if number > 12 else 0, guard=losses))
    return [inputs_of(*statistics[:read], decisions=made) for read in (13, 14)]


def test_a_model_that_jumps_about_is_not_taken_for_a_harmed_one():
    """The bound covers the spread of samples and of jumps. With samples alone chance would condemn every third model."""
    generator = random.Random(11)
    runs = [noisy_run(generator, harm=0.0) for _ in range(200)]
    condemned = [any(breach(reading)[0] for reading in run) for run in runs]
    # 5 % are promised for both readings together, plus three deviations of 200 draws. The margin is a tenth of a jump.
    assert sum(condemned) <= 200 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)), sum(condemned)
    blind = [
        any(compare(run[0].statistics[11].guard, run[1].statistics[at].guard, 0.02, 0.95).breached for at in (12, 13))
        for run in runs
    ]
    assert sum(blind) > 60, sum(blind)


def test_harm_beyond_the_jumps_is_found_while_the_freeze_is_watched_and_great_harm_at_once():
    generator = random.Random(12)
    found = [any(breach(reading)[0] for reading in noisy_run(generator, harm=0.4)) for _ in range(40)]
    assert sum(found) >= 38, sum(found)
    at_once = [breach(noisy_run(generator, harm=1.0)[0])[0] is not None for _ in range(40)]
    assert sum(at_once) >= 38, sum(at_once)


@pytest.mark.parametrize("readings", [1, 2, 5])
def test_readings_share_the_errors_that_the_job_allows_and_early_ones_have_fewer(readings):
    shares = [1.0 - confidence_of(reading, readings, 0.95) for reading in range(1, readings + 1)]
    assert sum(shares) == pytest.approx(0.05) and shares == sorted(shares)
    assert shares[0] == pytest.approx(0.05 / readings**3)


def test_a_freeze_that_is_watched_for_ever_asks_for_no_certainty():
    assert 0.95 < confidence_of(1, 10**6, 0.95) < 1.0
    assert t_quantile(confidence_of(1, 10**6, 0.95), 9.0) > t_quantile(confidence_of(1, 10, 0.95), 9.0)


def run_to_breach(**rails):
    """Frozen by decision 2 (step 23 on), guard loss up at the end of interval 3."""
    statistics = (entry(1, FALLING, guard=LOW), entry(2, FALLING, guard=LOW), entry(3, FALLING, 2, guard=HIGH))
    made = (decision(1, 0, "keep"), decision(2, 2, "freeze"))
    return inputs_of(*statistics, decisions=made, rails=rails)


def test_a_breach_rolls_back_to_the_step_before_the_freeze():
    made = decide(run_to_breach())
    assert (made.kind, made.number, made.interval, made.effective_step) == ("rollback", 3, 3, 33)
    assert (made.freeze_point, made.rollback_to_step, made.lineage) == (0, 22, 1)
    # Rises 0.5, 0.6, 0.4, 0.6; the first of two readings may spend an eighth of 5 %: 0.525 - 5.392 * 0.0957 / sqrt(4).
    assert "lower bound +0.2669 exceeds the tolerated 0.02" in made.reason
    assert made.reason.endswith("freeze 2 (0 -> 2) is taken back to step 22, freeze point 2 and deeper are quarantined")
    assert (made.kind, made.number, made.rollback_to_step, made.lineage, made.freeze_point) == ("rollback", 3, 22, 1, 0)
    assert made.policy == "gradient_argmin" and made.reason.startswith("guard: ")
    assert decide(replace(run_to_breach(), highest_lineage=4)).lineage == 5, "above every lineage that a plan ever named"
    assert decide(replace(run_to_breach(), requested=4)).kind == "rollback", "safety goes before a command"


def test_a_guard_that_holds_says_so():
    quiet = replace(run_to_breach(), statistics=(*run_to_breach().statistics[:2], entry(3, FALLING, 2, guard=LOW)))
    made = decide(quiet)
    assert made.kind == "keep"
    assert "guard: freeze 2 holds: guard loss +0 over 4 samples, lower bound +0 is within the tolerated 0.02" in made.reason


def test_margin_confidence_and_off_switch_are_the_jobs():
    assert decide(run_to_breach(guard_margin=0.5)).kind == "keep"
    assert decide(run_to_breach(guard_confidence=0.99999)).kind == "keep"
    off = decide(run_to_breach(off=("guard",)))
    assert off.kind == "keep"
    assert "guard" not in off.reason


def test_a_freeze_is_watched_for_its_window_of_readings_and_then_confirmed():
    before = [entry(1, FALLING, guard=LOW), entry(2, FALLING, guard=LOW)]
    made = (decision(2, 2, "freeze"),)
    third = inputs_of(*before, entry(3, FALLING, 2, guard=LOW), entry(4, FALLING, 2, guard=HIGH), decisions=made)
    assert decide(third).kind == "rollback"
    confirmed = [*before, entry(3, FALLING, 2, guard=LOW), entry(4, FALLING, 2, guard=LOW), entry(5, FALLING, 2, guard=HIGH)]
    assert decide(inputs_of(*confirmed, decisions=made)).kind != "rollback"
    unread = [*before, entry(3, FALLING, 2), entry(4, FALLING, 2), entry(5, FALLING, 2, guard=HIGH)]
    assert decide(inputs_of(*unread, decisions=made)).kind == "rollback", "the window counts readings"


def test_a_void_rollback_does_not_use_up_the_window():
    base = run_to_breach()
    late = decide(base).model_copy(update={"void": True})
    statistics = (*base.statistics, entry(4, FALLING, 2, guard=LOW), entry(5, FALLING, 2, guard=HIGH))
    again = decide(replace(base, statistics=statistics, decisions=(*base.decisions, late, decision(4, 2, "keep"))))
    assert again.kind == "rollback"
    assert again.lineage == 2, "a lineage is never used twice, started or not"
    assert (late.decided_in, again.decided_in) == (0, 0), "both are adopted in the lineage that goes on"
    assert late.void and late.effective_step == 33


def test_of_two_watched_freezes_the_newest_that_breaches_goes_first():
    on = {"off": ("cooldown", "warmup", "patience"), "guard_intervals": 3}
    statistics = [entry(1, FALLING, guard=LOW), entry(2, FALLING, 2, guard=LOW), entry(3, FALLING, 3, guard=HIGH)]
    made = (decision(1, 2, "freeze"), decision(2, 3, "freeze"))
    first = decide(inputs_of(*statistics, decisions=made, rails=on))
    assert (first.rollback_to_step, first.freeze_point) == (22, 2)
    slow = [entry(1, FALLING, guard=LOW), entry(2, FALLING, 2, guard=HIGH), entry(3, FALLING, 3, guard=HIGH)]
    culprit = decide(inputs_of(*slow, decisions=made, rails=on))
    assert (culprit.rollback_to_step, culprit.freeze_point) == (12, 0)


def test_a_rollback_stands_where_the_freeze_stood():
    freeze, after = decision(2, 2, "freeze"), decision(3, 2, "keep")
    back = decision(4, 0, "rollback", lineage=1, rollback_to_step=22)
    redone = [decision(3, 0, "keep", lineage=1), decision(4, 0, "keep", lineage=1)]
    kept = timeline([decision(1, 0, "keep"), freeze, after, back, *redone], CALENDAR)
    assert sorted(kept) == [1, 2, 3, 4]
    assert [kept[place].kind for place in sorted(kept)] == ["keep", "rollback", "keep", "keep"]
    assert [kept[place].lineage for place in sorted(kept)] == [0, 1, 1, 1]
    earlier_step = timeline([freeze, back, *redone, decision(4, 0, "keep", lineage=2)], CALENDAR)
    assert [earlier_step[place].lineage for place in sorted(earlier_step)] == [1, 1, 2], "a restore keeps the rollback"


def test_a_decision_that_is_recorded_again_as_void_counts_as_void():
    freeze, back = decision(2, 2, "freeze"), decision(3, 0, "rollback", lineage=1, rollback_to_step=22)
    records = [freeze, back, back.model_copy(update={"void": True}), decision(4, 2, "keep")]
    kept = timeline(records, CALENDAR)
    assert {place: (one.kind, one.void) for place, one in kept.items()} == {
        2: ("freeze", False),
        3: ("rollback", True),
        4: ("keep", False),
    }


def test_changes_are_what_statistics_show():
    statistics = [entry(1, FALLING), entry(2, FALLING, 2), entry(3, FALLING, 2), entry(4, FALLING, 0)]
    assert changes(statistics, CALENDAR) == (Change(1, 13, 0, 2), Change(3, 33, 2, 0))


def test_a_run_whose_freezes_hurt_ends_with_what_does_no_harm():
    """A freeze of depth 3 or more raises the guard loss: it is rolled back once and quarantined; the run goes on below it."""

    def measure(number, lineage, freeze_point):
        return entry(number, FALLING, freeze_point, lineage, guard=HIGH if freeze_point >= 3 else LOW)

    template = inputs_of(entry(1, FALLING), rails={"warmup_fraction": 0.0})
    statistics, decisions = simulate(template, 14, measure)
    rollbacks = [made for made in decisions if made.kind == "rollback"]
    assert len(rollbacks) == 1
    assert rollbacks[0].freeze_point == 2
    after = decisions[decisions.index(rollbacks[0]) + 1 :]
    assert {made.freeze_point for made in after} == {2}
    assert any("quarantine: freeze point 3 was rolled back" in made.reason for made in after)
    numbers = [made.number for made in after]
    assert numbers == list(range(numbers[0], 15)), "numbers rise by one within the new lineage"
    keys = {(made.decided_in, made.number) for made in decisions}
    assert len(keys) == len(decisions)
    cuts = Cuts((LineageStart(lineage=1, starts_at_step=rollbacks[0].rollback_to_step),))
    alive = [one for one in statistics if cuts.survives(one.lineage, one.last_step)]
    assert [one.number for one in alive] == list(range(1, 15))
    assert {one.freeze_point for one in alive} == {0, 2}
