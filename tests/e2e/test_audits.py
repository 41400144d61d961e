"""Wrong computations: an audit finds them, names the worker, and the run ends with an undisturbed run's bits."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import Ended, Workshop, slowed
from tests.wide_rows import wide_rows

EVERY = 4
FOUND = 16
"""The audited step in which the wrong computation shows. The last audit that agreed is of step 12, so the run goes back to the
checkpoint of step 10, before a freeze."""


def changes_for(pp_degree: int, dp_degree: int, **more: Any) -> dict[str, Any]:
    return {
        "training": {"audit_every_steps": EVERY},
        "checkpoint": {"every_steps": 8},
        "placement": {"pp_degree": pp_degree, "dp_degree": dp_degree, "reshape_every_freeze": False},
        **more,
    }


def until_published(workers: int) -> list[dict[str, Any]]:
    """Slow the steps after step 10, so that its checkpoint is published before the audit, on a slow disk too."""
    return slowed(11, 0.15, workers)


CASES = {
    "three replicas, a broken core": (1, 3, "gradient", True),
    "two by two, once": (2, 2, "activation", False),
    "two replicas, once": (1, 2, "gradient", False),
    "one replica, by the buddy": (2, 1, "gradient", False),
    "one worker, by itself": (1, 1, "activation", False),
}
WIDE = ("two by two, once", "two replicas, once", "one worker, by itself")
"""Cases between the others: who is replaced and what is taken back is decided as in them."""


@pytest.mark.parametrize("case", wide_rows(CASES, WIDE))
def test_who_computes_wrong_is_named_and_replaced_and_its_steps_are_taken_back(
    case: str, one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    pp_degree, dp_degree, what, lasting = CASES[case]
    workers = pp_degree * dp_degree
    flip = {"kind": "flip", "step": FOUND - 2 * lasting, "worker": workers - 1, "what": what, "lasting": lasting}
    faults = [flip, *until_published(workers)]
    ended = workshop.run(tmp_path / "run", changes_for(pp_degree, dp_degree, faults=faults), "--workers", str(workers))
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    (wrong,) = ended.events("wrong_bits")
    fault, detail = ended.fault(0), wrong["detail"]
    assert wrong["step"] == 10, "the last checkpoint, before a freeze, that is not after the last audit that agreed"
    assert detail["workers"] == fault["worker_ids"]
    assert detail["pods"] == fault["pods"]
    assert len(detail["nodes"]) == 1
    assert detail["devices"] == ["cpu"]
    assert (detail["audited_step"], detail["certain"]) == (str(FOUND), "yes")
    first, last = map(int, detail["units"].split("-"))
    assert 0 <= first <= last <= 6
    assert 0 <= int(detail["micro_batch"]) < 8
    assert "came out with different bits" in wrong["reason"]
    assert detail["nodes"][0] in wrong["reason"]
    later = {worker for plan in ended.plans if plan["lineage"] == wrong["lineage"] for worker in plan["placement"]["workers"]}
    assert not later & set(fault["worker_ids"]), "its pod has been replaced"


def test_two_that_contradict_each_other_for_ever_are_both_replaced(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """Which of the two is right cannot be decided, and no other worker is left: the run waits for both replacements."""
    flip = {"kind": "flip", "step": FOUND - 1, "worker": 0, "what": "activation", "lasting": True}
    ended = workshop.run(tmp_path / "run", changes_for(1, 2, faults=[flip]), "--workers", "2")
    assert ended.digest == one_worker.digest
    (wrong,) = ended.events("wrong_bits")
    assert sorted(wrong["detail"]["pods"]) == ["trainer-0", "trainer-1"]
    assert wrong["detail"]["certain"] == "no: each repeats its own bits"


def test_a_weight_that_has_flipped_is_no_wrong_computation(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """The audit meets the weight before the checkpoint does: it first compares the copies, and names the odd one of three."""
    flip = {"kind": "flip", "step": 14, "worker": 1, "what": "weight"}
    faults = [flip, *until_published(workers=3)]
    ended = workshop.run(tmp_path / "run", changes_for(1, 3, faults=faults), "--workers", "3")
    assert ended.digest == one_worker.digest
    (wrong,) = ended.events("wrong_bits")
    assert "the copies of unit" in wrong["reason"]
    assert wrong["step"] == 10, "the last checkpoint, before a freeze, at which all copies were equal"
    assert wrong["detail"]["workers"] == ended.fault(0)["worker_ids"]


@pytest.mark.parametrize(
    ("pp_degree", "dp_degree"),
    [pytest.param(2, 2, marks=pytest.mark.wide), (2, 1)],
    ids=["a replica is left", "the buddy is left"],
)
def test_a_member_dies_in_an_audit(pp_degree: int, dp_degree: int, one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """No member commits the step, audited or not; the survivors compute it again, and none is suspected of wrong results."""
    workers = pp_degree * dp_degree
    killed = {"kind": "kill_worker", "step": FOUND, "worker": workers - 1, "phase": "audit"}
    ended = workshop.run(tmp_path / "run", changes_for(pp_degree, dp_degree, faults=[killed]), "--workers", str(workers))
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert (ended.fault(0)["step"], ended.fault(0)["phase"]) == (FOUND, "audit")
    (failure,) = ended.events("failure")
    assert (failure["step"], failure["lost_steps"]) == (FOUND - 1, 0)
    assert ended.events("wrong_bits") == []


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param({"workers": 4, "pp_degree": 2, "dp_degree": 2}, marks=pytest.mark.wide),
        {"workers": 2, "pp_degree": 2, "dp_degree": 1, "schedule": "interleaved_1f1b", "virtual_stages": 2},
        {"workers": 3},
    ],
    ids=["two by two", "virtual stages and buddies", "the planner's shapes"],
)
def test_audits_in_every_step_change_no_bit_and_find_nothing(
    placement: dict[str, Any], one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """The run has dropout, freezing, a cache that is read and advanced, and reshapes."""
    changes = {"training": {"audit_every_steps": 1}, "placement": placement}
    ended = workshop.run(tmp_path / "run", changes, "--workers", str(placement["workers"]))
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert ended.events("wrong_bits") == []
    assert ended.events("failure") == []
    assert sum(record["cache_hits"] for record in ended.records) > 0
    assert all(record["step_parts"]["audit"] > 0 for record in ended.records), "every step was audited"
    assert all("audit" not in record["step_parts"] for record in one_worker.records), "and the other run's not"
