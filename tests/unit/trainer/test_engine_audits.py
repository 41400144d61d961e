"""The audit's assignment of computations, and the verdict on whose bits are wrong where they differ."""

import pytest

from frostline_contract.job.training import TrainingSection
from frostline_contract.plan import Plan
from frostline_trainer.replication.audits import all_culprits, audit_is_due, audits_of, judge
from tests.hand_made_plans import Layout, buddies_in, grouped, lone_plan, with_buddies

RIGHT, WRONG, OTHER = b"right", b"wrong", b"other"


def test_only_exact_numerics_are_audited_and_0_is_never() -> None:
    section = TrainingSection(steps=9, audit_every_steps=4)
    assert [step for step in range(1, 10) if audit_is_due(section, step)] == [4, 8]
    assert not any(audit_is_due(section.model_copy(update={"audit_every_steps": 0}), step) for step in range(1, 10))
    assert not any(audit_is_due(section.model_copy(update={"numerics": "fast"}), step) for step in range(1, 10))


@pytest.mark.parametrize(
    ("owner_was", "auditor_was", "again", "culprits", "sure"),
    [
        (WRONG, RIGHT, {0: RIGHT, 1: RIGHT}, {0}, True),
        (RIGHT, WRONG, {0: RIGHT, 1: RIGHT}, {1}, True),
        (WRONG, RIGHT, {0: WRONG, 1: RIGHT, 2: RIGHT}, {0}, True),
        (RIGHT, WRONG, {0: RIGHT, 1: WRONG, 2: RIGHT}, {1}, True),
        (WRONG, OTHER, {0: WRONG, 1: OTHER, 2: RIGHT, 3: RIGHT, 4: RIGHT}, {0, 1}, True),
        (WRONG, RIGHT, {0: RIGHT}, {0}, True),
        (WRONG, RIGHT, {0: OTHER, 1: RIGHT}, {0}, True),
        (WRONG, RIGHT, {0: WRONG, 1: RIGHT}, {0, 1}, False),
        (WRONG, RIGHT, {0: WRONG, 1: RIGHT, 2: OTHER}, {0, 1}, False),
    ],
    ids=["owner once", "auditor once", "a broken owner of three", "a broken auditor of three", "both broken, of five",
         "only one is asked again", "who contradicts itself", "each repeats itself", "three say three things"],
)  # fmt: skip
def test_whose_bits_are_wrong(
    owner_was: bytes, auditor_was: bytes, again: dict[int, bytes], culprits: set[int], sure: bool
) -> None:
    verdict = judge(0, 1, (owner_was, auditor_was), again)
    assert (set(verdict.culprits), verdict.sure) == (culprits, sure)


def test_a_member_that_audits_itself_is_the_culprit() -> None:
    assert judge(0, 0, (WRONG, RIGHT), {0: RIGHT}).culprits == {0}


def test_what_is_sure_of_one_difference_decides_the_others() -> None:
    """A sure culprit clears the other one of a pair in doubt: a broken worker differs as owner and as auditor."""
    doubtful = judge(0, 1, (WRONG, RIGHT), {0: WRONG, 1: RIGHT})
    sure = judge(2, 0, (RIGHT, WRONG), {2: RIGHT, 0: WRONG, 3: RIGHT})
    assert all_culprits([doubtful, sure]) == {0}
    assert all_culprits([doubtful]) == {0, 1}


def plan_of(layout: Layout, buddies: bool = False) -> Plan:
    placement = layout.placement(0)
    buddies = buddies_in(placement, tuple(range(len(placement.workers))))[0] if buddies else ()
    return with_buddies(lone_plan(placement), buddies)


@pytest.mark.parametrize("layout", [Layout(1, 2), Layout(2, 2), Layout(1, 3), Layout(2, 2, 2, "interleaved_1f1b")], ids=str)
def test_each_stage_of_each_replica_is_audited_by_another_replica(layout: Layout) -> None:
    plan = plan_of(layout)
    shape, seen = plan.placement.shape, set[int]()
    for step in range(1, 40):
        audits = audits_of(plan, 7, step, num_microbatches=5, num_leaves=4)
        assert {(audit.stage, audit.replica) for audit in audits} == {
            (stage, replica) for stage in range(shape.num_stages) for replica in range(shape.dp_degree)
        }
        for audit in audits:
            members = (audit.owner, *audit.judges)
            assert {shape.pp_rank(member) for member in members} == {audit.stage % shape.pp_degree}
            assert sorted(shape.dp_rank(member) for member in members) == list(range(shape.dp_degree))
            assert shape.dp_rank(audit.owner) == audit.replica
            seen.add(audit.micro_batch)
        assert len({(audit.replica, audit.micro_batch) for audit in audits}) == shape.dp_degree, "one micro-batch a replica"
    assert seen == set(range(5)), "in time, every micro-batch has its turn"


def test_with_one_replica_the_buddy_audits_and_without_buddies_each_member_itself() -> None:
    plan = plan_of(Layout(2, 1), buddies=True)
    for audit in audits_of(plan, 7, 1, 9, 8):
        (unit, *_) = plan.placement.units_of_stage(audit.stage)
        assert plan.placement.workers[audit.auditor] == plan.buddies[unit]
        assert audit.auditor != audit.owner
    assert all(audit.judges == (audit.owner,) for audit in audits_of(plan_of(Layout(2, 1)), 7, 1, 9, 8))


@pytest.mark.parametrize(
    ("columns", "levels", "auditors"),
    [
        (2, 1, [1, 0]),
        (4, 1, [3, 0, 1, 2]),
        (1, 2, [1, 0]),
        (1, 4, [3, 0, 1, 2]),
        (2, 2, [2, 3, 0, 1]),
        (4, 2, [6, 7, 0, 1, 2, 3, 4, 5]),
        (2, 4, [4, 5, 6, 7, 0, 1, 2, 3]),
    ],
)
def test_members_of_the_only_group_audit_the_next_column_at_their_level_or_without_columns_the_next_level(
    columns: int, levels: int, auditors: list[int]
) -> None:
    """In each of two stages; neighbouring members differ in their level."""
    degree, audits = columns * levels, audits_of(plan_of(grouped(2, 1, columns, depth=levels)), 7, 1, 9, 8)
    assert [(audit.stage, audit.owner, audit.judges) for audit in audits] == [
        (stage, degree * stage + place, (degree * stage + auditor,))
        for stage in range(2)
        for place, auditor in enumerate(auditors)
    ]


@pytest.mark.parametrize(("columns", "levels"), [(2, 1), (1, 2), (2, 2)])
def test_a_group_audits_another_replicas_group_together_each_member_the_one_in_its_place(columns: int, levels: int) -> None:
    layout = grouped(1, 2, columns, depth=levels)
    shape, audits = layout.shape, audits_of(plan_of(layout), 7, 1, 9, 8)
    assert [(audit.replica, audit.owner) for audit in audits] == [
        (shape.dp_rank(member), member) for member in range(shape.world_size)
    ]
    for audit in audits:
        (judge,) = audit.judges
        assert (shape.dp_rank(judge), shape.tp_rank(judge)) == (1 - audit.replica, shape.tp_rank(audit.owner))
