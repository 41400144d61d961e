"""The decision: its binding to steps, kinds, tied embeddings, the default rails' pace, and its text."""

import pytest

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import parse_job
from frostline_controller.decisions.decide import decide
from frostline_controller.decisions.inputs import FreezeInputs
from frostline_controller.decisions.registry import policy_names
from tests.unit.controller.freezing_run import decision, entry, inputs_of, simulate

FALLING = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
BARE = {"only": ()}
TWO_BLOCKS = """
from frostline_controller.decisions.inputs import Proposal

def propose(inputs):
    return Proposal(3, "two blocks, says the plug-in")
"""


def test_a_decision_is_bound_to_its_interval_and_step():
    made = decide(inputs_of(entry(1, FALLING), entry(2, FALLING, lineage=0), **BARE))
    assert (made.number, made.interval, made.effective_step, made.lineage) == (2, 2, 23, 0)
    assert (made.kind, made.freeze_point, made.policy, made.rollback_to_step) == ("freeze", 3, "gradient_argmin", -1)
    restored = decide(inputs_of(entry(1, FALLING), entry(2, FALLING, lineage=3), **BARE))
    assert restored.lineage == 3
    assert (restored.number, restored.freeze_point) == (made.number, made.freeze_point), "a restore changes no decision"
    with pytest.raises(ValueError, match="decision 40 would take effect at step 403; the run ends at 400"):
        decide(inputs_of(entry(40, FALLING)))


def test_later_decisions_and_the_decision_itself_are_not_looked_at():
    statistics = (entry(1, FALLING), entry(2, FALLING))
    plain = decide(inputs_of(*statistics, **BARE))
    future = (plain, decision(3, 5, "freeze"), decision(4, 0, "rollback", lineage=1, rollback_to_step=12))
    assert decide(inputs_of(*statistics, decisions=future, **BARE)) == plain


def test_the_default_rails_freeze_one_block_at_a_time_and_leave_the_last_two():
    statistics, decisions = simulate(inputs_of(entry(1, FALLING)), 39, lambda k, n, f: entry(k, FALLING, f, n, guard=[1.0, 1.0]))
    steps = [(made.effective_step, made.freeze_point) for made in decisions if made.kind != "keep"]
    assert steps == [(243, 2), (263, 3), (283, 4)]
    assert statistics[-1].freeze_point == 4
    assert "warmup: step 233 is within the first 240 steps (3 -> 0)" in decisions[22].reason
    assert "cap_interval: at most 1 block(s) by one decision (3 -> 2)" in decisions[23].reason
    assert "cooldown: decision 24 changed the freeze point" in decisions[24].reason
    assert "cap_total: at most 3 of 6 blocks (50%)" in decisions[-1].reason


def test_the_reason_says_what_freezing_a_tied_embedding_stops():
    words = "tied embeddings: freezing unit 0 stops the head's matrix too"
    tied = decide(inputs_of(entry(1, FALLING), tied=True, **BARE))
    assert tied.reason.endswith(words)
    untied = decide(inputs_of(entry(1, FALLING), tied=True, untie_on_freeze=True, **BARE))
    assert words not in untied.reason
    assert untied.reason.endswith("untie_on_freeze lets the head's own matrix go on learning")
    assert "tied" not in decide(inputs_of(entry(1, FALLING), **BARE)).reason
    second = decide(inputs_of(entry(1, FALLING), entry(2, FALLING, 3), tied=True, **BARE))
    assert second.kind == "freeze"
    assert "tied" not in second.reason, "only the first freeze stops it"


def test_a_policy_of_ones_own_comes_in_through_an_entry_point(tmp_path, monkeypatch):
    """A distribution as an installer would leave it: metadata with an entry point, and a module."""
    metadata = tmp_path / "two_blocks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: two-blocks\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[frostline.freeze_policies]\ntwo_blocks = two_blocks_policy:propose\n")
    (tmp_path / "two_blocks_policy.py").write_text(TWO_BLOCKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "two_blocks" in policy_names()
    made = decide(inputs_of(entry(1, FALLING), policy={"name": "two_blocks"}, **BARE))
    assert (made.freeze_point, made.policy, made.reason) == (3, "two_blocks", "two blocks, says the plug-in")
    railed = decide(inputs_of(entry(1, FALLING), policy={"name": "two_blocks"}))
    assert railed.freeze_point == 0
    assert "warmup: step 13" in railed.reason


def test_inputs_come_from_a_job():
    job = parse_job(
        {
            "model": {"family": "vit", "config": {"num_hidden_layers": 6}, "untie_on_freeze": True},
            "task": {"kind": "image_classification"},
            "data": {"source": "digits"},
            "training": {"epochs": 4, "batch_size": 64, "micro_batch_size": 8},
            "freeze": {"rails": {"off": ["warmup", "patience", "min_active", "baseline"]}},
        }
    )
    inputs = FreezeInputs.of_job(job, 8, DecisionCalendar(10, 3, 400), [entry(1, FALLING)], [], tied=True)
    assert (inputs.num_blocks, inputs.untie_on_freeze, inputs.current) == (6, True, 0)
    assert decide(inputs).freeze_point == 2
