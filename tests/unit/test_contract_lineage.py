"""Which records survive rollbacks and restores, which is newer, how files of JSON lines are read: one rule for every reader."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.epochs import FoundCheckpoint
from frostline_contract.jsonl import JsonlTail, read_jsonl
from frostline_contract.lineage import (
    RESTORE,
    ROLLBACK,
    Cuts,
    LineageStart,
    Place,
    is_before_freeze,
    lineage_above,
    split_records,
)
from frostline_contract.plan import Decision, GenerationId, StateTag
from frostline_contract.statistics import StepRecord
from frostline_controller import api
from frostline_controller.report.data import read_run
from frostline_trainer.verify import surviving_records


def line(step: int, lineage: int, loss: float = 1.0) -> dict:
    return StepRecord(
        lineage=lineage, step=step, loss=loss, learning_rate=0.1, gradient_norm=1.0, freeze_point=0, pp_degree=1, dp_degree=1,
        generation="1.1", step_seconds=0.1,
    ).model_dump(mode="json")  # fmt: skip


def cut(lineage: int, step: int) -> dict:
    return {"lineage": lineage, "starts_at_step": step}


TWO_CUTS = [
    *(line(step, 0) for step in range(1, 11)), cut(1, 8), *(line(step, 1) for step in (9, 10)),
    cut(2, 5), *(line(step, 2) for step in (6, 7)),
]  # fmt: skip


@given(st.permutations(TWO_CUTS))
def test_two_cuts_apply_both_wherever_their_lines_stand(lines: list[dict]) -> None:
    found = split_records(lines, "metrics.jsonl")
    assert [(one["lineage"], one["step"]) for one in found.surviving] == [(0, s) for s in range(1, 6)] + [(2, 6), (2, 7)]
    assert [(one["lineage"], one["step"]) for one in found.undone] == [(0, s) for s in range(6, 11)] + [(1, 9), (1, 10)]


def test_a_lineage_is_cut_by_later_ones_alone() -> None:
    cuts = Cuts((LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=2, starts_at_step=17, kind=RESTORE)))
    assert [cuts.survives(lineage, 18) for lineage in (0, 1, 2, 3)] == [False, False, True, True]
    assert cuts.survives(0, 17)
    rolled = Cuts((LineageStart(lineage=1, starts_at_step=4, kind=ROLLBACK),))
    assert not rolled.survives(0, 5) and rolled.restores().survives(0, 5)


NUMBERS = st.integers(0, 3)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_newer_lineages_every_step_is_newer_and_within_one_the_later_is(lineage: int, step: int, other: int, at: int) -> None:
    newer = lineage > other or (lineage == other and step > at)
    assert (Place(lineage, step) > Place(other, at)) == newer
    assert (Place(lineage, step) == Place(other, at)) == (lineage == other and step == at)


def test_a_record_a_checkpoint_and_a_state_name_their_place() -> None:
    record = StepRecord.model_validate(line(4, 1))
    state = StateTag(lineage=1, step=4, generation=GenerationId(incarnation=1, counter=1))
    checkpoint = FoundCheckpoint(path="0/1.1/4", lineage=1, step=4)
    assert record.place == checkpoint.place == state.place == Place(lineage=1, step=4)
    assert record.place > StepRecord.model_validate(line(9, 0)).place
    assert "place" not in record.model_dump(), "no field of metrics.jsonl"


@given(NUMBERS, st.lists(NUMBERS))
def test_a_lineage_that_opens_is_above_every_known_one(first: int, others: list[int]) -> None:
    opened = lineage_above(first, *others)
    assert all(opened > known for known in (first, *others)) and opened - 1 in (first, *others)


def freeze(lineage: int, step: int = 9, kind: str = "freeze", void: bool = False) -> Decision:
    return Decision(number=1, interval=1, effective_step=step, freeze_point=2, lineage=lineage, kind=kind, void=void)


@pytest.mark.parametrize(
    ("decisions", "oldest"),
    [
        ([], 0),
        ([freeze(1)], 1),
        ([freeze(0), freeze(2)], 2),
        ([freeze(1), freeze(2, void=True)], 1),
        ([freeze(1), freeze(2, kind="unfreeze"), freeze(2, kind="keep")], 1),
        ([freeze(1), freeze(2, step=8), freeze(2, step=10)], 1),
    ],
)
def test_a_checkpoint_before_a_freeze_is_of_the_lineage_that_froze_or_a_later_one(decisions: list[Decision], oldest: int) -> None:
    usable = [lineage for lineage in range(5) if is_before_freeze(Place(lineage, 8), 3, decisions)]
    assert usable == list(range(oldest, 4)), "none that was undone, and none that the state has not been through"


def test_every_reader_of_a_run_drops_an_undone_record_that_came_late(tmp_path: Path) -> None:
    """Late records of a lineage that was rolled back are appended, since they did happen, after the line that cuts them."""
    late = line(3, 0, loss=9.0)
    lines = [*(line(step, 0) for step in (1, 2)), cut(1, 2), line(3, 1, loss=5.0), late, line(4, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"lineage": 1, "st')
    kept = [(1, 1.0), (2, 1.0), (3, 5.0), (4, 1.0)]
    assert [(one["step"], one["loss"]) for one in api.RunResult(tmp_path).metrics] == kept
    assert [(one.step, one.loss) for one in read_run(tmp_path).records] == kept
    assert [(step, one.loss) for step, one in surviving_records(tmp_path)[0].items()] == kept
    assert [(one.step, one.loss) for one in read_run(tmp_path).lost_records] == [(3, 9.0)]


def test_a_torn_last_line_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "join"}\n{"kind": "fre')
    assert list(read_jsonl(path)) == [{"kind": "join"}]
    tail = JsonlTail(path)
    assert tail.new() == [{"kind": "join"}]
    path.write_bytes(b'{"kind": "join"}\n{"kind": "freeze"}\n')
    assert tail.new() == [{"kind": "freeze"}]
    path.write_bytes(b"{nonsense}\n")
    with pytest.raises(ValueError, match=r"events.jsonl, line 1: no JSON"):
        list(read_jsonl(path))
