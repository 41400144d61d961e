"""All rails over random runs: no policy leaves its bounds, and a decision computed again is the same decision."""

import math
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from frostline_contract.lineage import ROLLBACK, LineageStart
from frostline_controller.decisions.decide import decide
from frostline_controller.decisions.inputs import blocks_frozen
from frostline_controller.decisions.surviving import surviving_statistics
from tests.unit.controller.freezing_run import entry, inputs_of, simulate

norms = st.one_of(st.floats(0.0, 100.0), st.sampled_from([math.nan, math.inf, 0.0]))
intervals = st.lists(st.lists(norms, min_size=6, max_size=6), min_size=12, max_size=24)
rail_values = st.fixed_dictionaries(
    {
        "warmup_fraction": st.sampled_from([0.0, 0.1, 0.5]),
        "patience": st.integers(1, 3),
        "blocks_per_interval": st.integers(1, 3),
        "total_fraction": st.floats(0.0, 1.0),
        "last_blocks": st.integers(1, 5),
        "cooldown_intervals": st.integers(0, 2),
        "absolute_change": st.sampled_from([0.5, 0.9, 1.0]),
        "guard_margin": st.sampled_from([0.0, 0.02, 10.0]),
    }
)
measured = st.sampled_from(["gradient_argmin", "schedule", "gradient_change", "information_per_flop"])
guard_rises = st.lists(st.floats(-1.0, 1.0), min_size=24, max_size=24)


def random_run(rows, policy, rails, rises, off=()):
    template = inputs_of(entry(1, rows[0]), policy={"name": policy}, rails={**rails, "off": off})

    def measure(number, lineage, freeze_point):
        level = 2.0 + rises[number - 1] + (0.5 * lineage if lineage % 2 else 0.0)
        row = rows[number - 1]
        still = (0.0, *(norm / 1000.0 if math.isfinite(norm) else 1.0 for norm in row), 0.0)
        guard = [level, level + 0.01, level - 0.02]
        return entry(number, row, freeze_point, lineage, guard=guard, unit_output_changes=still)

    return template, *simulate(template, len(rows), measure)


@settings(max_examples=40, deadline=None)
@given(intervals, measured, rail_values, guard_rises)
def test_no_measured_policy_under_rails_leaves_its_bounds(rows, policy, rails, rises):
    _, statistics, decisions = random_run(rows, policy, rails, rises)
    limit = min(math.floor(rails["total_fraction"] * 6 + 1e-9), max(0, 6 - rails["last_blocks"]))
    quarantined, lineage = 99, 0
    for read, made in zip(statistics, decisions, strict=True):
        before, after = read.freeze_point, made.freeze_point
        if made.kind == "rollback":
            assert after < before
            assert lineage < made.lineage
            undone = [d for d in decisions if d.kind == "freeze" and d.effective_step == made.rollback_to_step + 1]
            quarantined, lineage = min(quarantined, *(d.freeze_point for d in undone if d.lineage < made.lineage)), made.lineage
            continue
        assert after >= before, "these policies never ask for an unfreeze"
        assert 0 <= blocks_frozen(after) <= limit
        assert after != 1, "the embedding freezes with the first block"
        assert blocks_frozen(after) - blocks_frozen(before) <= rails["blocks_per_interval"]
        assert made.effective_step > rails["warmup_fraction"] * 400 or after == 0
        assert after < quarantined, "a boundary that was rolled back came again"
        assert made.reason
    assert len(decisions) <= 30 * len(rows), "rollbacks end: each quarantines a shallower boundary"


BOLD_RAILS = {
    "warmup_fraction": 0.0, "patience": 1, "blocks_per_interval": 1, "total_fraction": 1.0, "last_blocks": 1,
    "cooldown_intervals": 0, "absolute_change": 0.5, "guard_margin": 0.0,
}  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(intervals, st.one_of(measured, st.just("plasticity")), rail_values, guard_rises)
@example([[0.0] * 6] * 12, "gradient_argmin", BOLD_RAILS, [0.0] * 6 + [1.0] + [0.0] * 17)  # two rollbacks undo one interval
def test_a_decision_computed_again_from_the_whole_history_is_the_same(rows, policy, rails, rises):
    template, statistics, decisions = random_run(rows, policy, rails, rises)
    for place in range(len(decisions)):
        # A successor has the same records, of which it takes what no rollback has undone, and possibly the decision as well.
        undone = [made for made in decisions[:place] if made.kind == "rollback" and not made.void]
        starts = tuple(LineageStart(lineage=made.lineage, starts_at_step=made.rollback_to_step, kind=ROLLBACK) for made in undone)
        alive = surviving_statistics(statistics[: place + 1], starts)
        again = replace(template, statistics=tuple(alive), decisions=tuple(decisions[: place + 1]))
        assert decide(again) == decisions[place]


@settings(max_examples=15, deadline=None)
@given(intervals, rail_values, guard_rises, st.integers(1, 4))
def test_what_judges_by_outputs_stays_below_the_caps_and_moves_deep_or_not_at_all(rows, rails, rises, least):
    _, statistics, decisions = random_run(rows, "plasticity", {**rails, "least_blocks": least}, rises)
    limit = min(math.floor(rails["total_fraction"] * 6 + 1e-9), max(0, 6 - rails["last_blocks"]))
    rolled_back = False
    for read, made in zip(statistics, decisions, strict=True):
        rolled_back |= made.kind == "rollback"
        taken = blocks_frozen(made.freeze_point) - blocks_frozen(read.freeze_point)
        assert blocks_frozen(made.freeze_point) <= limit
        if taken > 0 and not rolled_back:  # a quarantine lowers what may ever freeze
            assert taken >= least or blocks_frozen(made.freeze_point) == limit


@settings(max_examples=25, deadline=None)
@given(intervals, st.dictionaries(st.integers(1, 20), st.integers(0, 7), max_size=6), guard_rises)
def test_manual_points_stay_within_caps_and_quarantine(rows, points, rises):
    template = inputs_of(entry(1, rows[0]), policy={"name": "manual", "points": points})
    level = [[2.0 + rise, 2.01 + rise, 1.98 + rise] for rise in rises]
    _, decisions = simulate(template, len(rows), lambda k, n, f: entry(k, rows[k - 1], f, n, guard=level[k - 1]))
    for place, made in enumerate(decisions):
        assert 0 <= blocks_frozen(made.freeze_point) <= 4
        rollbacks = [earlier for earlier in decisions[:place] if earlier.kind == "rollback"]
        for rollback in rollbacks:
            gone = [d.freeze_point for d in decisions if d.kind == "freeze" and d.effective_step == rollback.rollback_to_step + 1]
            assert made.freeze_point < max(gone)
