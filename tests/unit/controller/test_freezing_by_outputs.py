"""Freezing early and deep: plasticity and stairs, freezes that wait until they take enough blocks, initial units."""

from dataclasses import replace

import pytest

from frostline_contract.job import parse_job, read_yaml
from frostline_contract.job.freezing import ElasticSection, FreezeSection
from frostline_controller.decisions.decide import check_freezing, decide
from frostline_controller.decisions.initial import initial_freeze_reason
from frostline_controller.decisions.inputs import blocks_frozen
from frostline_controller.decisions.policies.plasticity import propose, settled_blocks
from tests.unit.controller.freezing_run import decision, entry, inputs_of, simulate
from tests.unit.controller.synthetic_run import job_values

NORMS = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
PLASTICITY = {"name": "plasticity", "settled_share": 0.2}
GUARD = [1.0, 1.1, 0.9]


def moved(number: int, blocks: list[float], freeze_point: int = 0, **fields):
    """Return statistics of an interval by how far blocks' outputs moved; the embedding is still, the head not compared."""
    return entry(number, NORMS, freeze_point, guard=GUARD, unit_output_changes=(0.0, *blocks, 0.0), **fields)


@pytest.mark.parametrize(
    ("blocks", "frozen", "settled"),
    [
        ([0.01, 0.02, 0.04, 0.06, 0.2, 0.3], 0, 3),  # the first block that still moves ends the prefix
        ([0.06, 0.01, 0.01, 0.01, 0.01, 0.01], 0, 0),  # a settled block behind a moving one is no boundary
        ([0.0, 0.0, 0.05, 0.1, 0.1, 0.1], 2, 3),  # frozen blocks count as settled, and so does the limit itself
        ([0.0] * 6, 6, 6),
    ],
)
def test_a_prefix_has_settled_up_to_the_first_block_that_moves(blocks, frozen, settled):
    assert settled_blocks((0.0, *blocks, 0.0), frozen, 6, 0.05) == settled


def test_plasticity_says_which_blocks_have_settled_and_which_has_not():
    some = propose(inputs_of(moved(1, [0.3] * 6), moved(2, [0.01, 0.05, 0.2, 0.4, 0.5, 0.4]), policy=PLASTICITY))
    assert some.freeze_point == 3
    assert some.reason == (
        "plasticity: outputs move most at block 5, by 0.5 (1 - CKA, against the interval before); at blocks 1 to 2 by at most "
        "10.0% of that; at block 3 by 40.0%, and 20% is settled: 2 blocks"
    )
    one = propose(inputs_of(moved(2, [0.0, 0.05, 0.2, 0.4, 0.5, 0.4], 2), policy=PLASTICITY))
    assert one.freeze_point == 3 and "; at block 2 by at most 10.0% of that; at block 3" in one.reason
    alike = propose(inputs_of(moved(2, [0.3] * 6), policy=PLASTICITY))
    assert alike.freeze_point == 0 and alike.reason.endswith("at block 1 by 100.0%, and 20% is settled: 0 blocks")
    assert propose(inputs_of(moved(2, [0.3] * 6), policy={**PLASTICITY, "settled_share": 1.0})).freeze_point == 7


def test_plasticity_knows_nothing_of_scale():
    """Shorter intervals and smaller learning rates make all changes smaller, and do not show which block has settled."""
    blocks = [0.001, 0.01, 0.05, 0.3, 0.4, 0.4]
    found = [propose(inputs_of(moved(2, [scale * one for one in blocks]), policy=PLASTICITY)) for scale in (1.0, 1e-3)]
    assert [one.freeze_point for one in found] == [4, 4]


def test_plasticity_keeps_what_there_is_where_it_cannot_be_judged():
    first = propose(inputs_of(entry(1, NORMS), policy=PLASTICITY))
    assert (first.freeze_point, first.reason) == (0, "plasticity cannot be judged: interval 1 has no interval before it")
    unprobed = propose(inputs_of(entry(2, NORMS, 3), policy=PLASTICITY))
    assert unprobed.freeze_point == 3 and "it needs freeze.probe_samples of 2 or more" in unprobed.reason
    still = propose(inputs_of(moved(2, [0.0] * 6, 3), policy=PLASTICITY))
    assert (still.freeze_point, still.reason) == (3, "plasticity cannot be judged: no block's outputs have moved")
    early = [0.0] * 5 + [0.1]
    still = [moved(1, early, learning_rate=1e-5), moved(2, early, learning_rate=1e-4)]
    rising = propose(inputs_of(*still, policy=PLASTICITY))
    assert rising.freeze_point == 0 and "the learning rate still rises, from 1e-05 to 0.0001" in rising.reason
    refused = propose(inputs_of(moved(1, [0.0] * 6, accepted_steps=0), policy=PLASTICITY))
    assert refused.freeze_point == 0 and "no accepted step" in refused.reason


def test_plasticity_freezes_in_one_deep_move_as_early_as_patience_lets_it():
    """Under the default rails: not at 60 % of the run, not block by block, never beyond half of the blocks, guarded."""
    settled = [0.01, 0.01, 0.02, 0.03, 0.03, 0.2]
    template = inputs_of(moved(1, settled), policy=PLASTICITY)
    _, decisions = simulate(template, 10, lambda k, n, f: moved(k, settled, f, lineage=n))
    assert [made.freeze_point for made in decisions] == [0, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    assert "cap_total: at most 3 of 6 blocks (50%) (6 -> 4)" in decisions[1].reason
    hurt = [*(moved(k, settled) for k in (1, 2)), entry(3, NORMS, 4, guard=[2.0, 2.1, 1.9])]
    back = decide(inputs_of(*hurt, policy=PLASTICITY, decisions=(decision(1, 0, "keep"), decision(2, 4, "freeze"))))
    assert (back.kind, back.rollback_to_step, back.freeze_point) == ("rollback", 22, 0)


def test_stairs_are_shares_of_the_run_and_of_the_blocks():
    """The user has set the stairs: no warm-up and no patience apply; caps and the guard do."""
    policy = read_yaml("{name: stairs, stairs: {0.1: 0.34, 0.4: 0.5, 0.8: 1.0}}")
    template = inputs_of(moved(1, NORMS), policy=policy)
    _, decisions = simulate(template, 38, lambda k, n, f: moved(k, [0.0] * 6, f, lineage=n))
    # 400 steps, decision k from step 10 k + 3 on: 0.1 is reached by decision 4, 0.4 by 16; a third of 6 is 2, a half 3.
    assert [blocks_frozen(made.freeze_point) for made in decisions] == [0] * 3 + [2] * 12 + [3] * 23
    assert decisions[3].reason.startswith("stairs: 34% of 6 blocks from 10% of the run on = 2")
    assert "cap_total" in decisions[37].reason


@pytest.mark.parametrize(
    ("stairs", "words"),
    [({}, "freeze.policy.stairs is empty; give shares"), ({0.5: 1.5}, "has 1.5 at 0.5"), ({1.0: 0.5}, "has 0.5 at 1; both are")],
)
def test_stairs_that_are_none_are_refused(stairs, words):
    with pytest.raises(ValueError, match=words):
        check_freezing(inputs_of(entry(1, NORMS), policy={"name": "stairs", "stairs": stairs}))


def test_a_move_waits_until_it_takes_enough_blocks_or_all_that_may_freeze():
    """Block after block settles: three moves without the rail, one or two with it; the rest is frozen at the end too."""

    def points(**rails):
        template = inputs_of(moved(1, [0.1] * 6), policy=PLASTICITY, rails={"cooldown_intervals": 0, **rails})

        def measure(number, lineage, freeze_point):
            blocks = [0.01 if block < number else 0.3 for block in range(6)]
            return moved(number, blocks, freeze_point, lineage=lineage)

        _, decisions = simulate(template, 8, measure)
        return [blocks_frozen(made.freeze_point) for made in decisions], [made.reason for made in decisions]

    assert points()[0] == [0, 1, 2, 3, 3, 3, 3, 3]
    two, reasons = points(least_blocks=2)
    assert two == [0, 0, 2, 3, 3, 3, 3, 3]
    assert "least_move: 1 block(s) are fewer than 2, and 3 may freeze: it waits for more (2 -> 0)" in reasons[1]
    assert points(least_blocks=5)[0] == [0, 0, 0, 3, 3, 3, 3, 3], "all that may freeze are enough"
    assert points(least_blocks=5, off=("least_move",))[0] == points()[0]


def test_least_move_lifts_the_cap_of_one_decision():
    rows = [moved(number, [0.0] * 6) for number in range(1, 4)]
    rails = {"warmup_fraction": 0.0, "least_blocks": 3}
    assert decide(inputs_of(*rows, rails=rails, policy={"alpha": 0.9})).freeze_point == 4


def initial(units: int, *statistics, **more):
    made = inputs_of(*statistics, **more)
    return replace(made, freeze=FreezeSection(initial_units=units, policy=made.freeze.policy, rails=made.freeze.rails))


@pytest.mark.parametrize("units", [8, 9])
def test_initial_units_that_do_not_fit_the_model_are_refused(units):
    with pytest.raises(ValueError, match=f"freeze.initial_units is {units}, and the model has 8 units.* set it to 7 or less"):
        check_freezing(initial(units, entry(1, NORMS)))
    check_freezing(initial(7, entry(1, NORMS)))


def test_initial_units_are_no_change_and_policies_go_on_from_them():
    """No freeze to watch and no cooldown after it; Eq. (1) and caps count them; an operator may unfreeze them."""
    rows = [entry(number, NORMS, 3, guard=[5.0 * number] * 3) for number in (1, 2, 3)]
    kept = decide(initial(3, *rows, rails={"warmup_fraction": 0.0, "total_fraction": 0.8}))
    assert kept.kind == "freeze" and kept.freeze_point == 4
    assert "cap 2 + 0.3333 x 4" in kept.reason and "guard:" not in kept.reason and "cooldown" not in kept.reason
    capped = decide(initial(3, *rows, rails={"warmup_fraction": 0.0, "total_fraction": 0.2}))
    assert capped.kind == "keep" and capped.freeze_point == 3, "a cap holds what there is"
    assert decide(replace(initial(3, *rows), requested=0)).kind == "unfreeze"


def test_with_the_switch_off_nothing_is_frozen():
    off = replace(initial(3, entry(1, NORMS)), elastic=ElasticSection(freeze=False))
    assert decide(off).freeze_point == 0


def test_what_is_frozen_from_the_start_is_said_with_what_it_means_for_a_tied_head():
    job = parse_job(job_values(freeze={"initial_units": 1}))
    assert initial_freeze_reason(job, 8, tied=False) == "freeze.initial_units is 1: unit 0 is frozen from step 1, of 8 units"
    assert initial_freeze_reason(job, 8, tied=True).endswith("freezing unit 0 stops the head's matrix too")
    assert initial_freeze_reason(parse_job(job_values()), 8, tied=True) == ""
