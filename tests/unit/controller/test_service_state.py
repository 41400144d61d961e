"""State that outlives the controller's process: the guarded annotation, the journals, what survives rollbacks and restores."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from frostline_contract.annotations import COMMAND, FENCE, PLAN, REQUESTED_WORKERS, STATE
from frostline_contract.intervals import DecisionCalendar
from frostline_contract.pieces import Pieces
from frostline_contract.plan import Decision, GenerationId, Placement, Plan
from frostline_contract.statistics import IntervalStatistics, StepRecord
from frostline_controller.cluster.backend import ClusterError, ClusterState, Conflict
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.decisions.next_decision import decision_line, read_replay
from frostline_controller.decisions.surviving import in_force, next_number, surviving_decisions, surviving_statistics
from frostline_controller.planner.plans import sources_of
from frostline_controller.run.checkpoints import newest_checkpoint
from frostline_controller.run.durable import (
    DurableState,
    DurableStore,
    LineageStart,
    decode_state,
    encode_state,
    next_generation,
)
from frostline_controller.run.journal import Journal
from frostline_controller.run.records import RecordLog, ResultsDiffer, StatisticsLog

CALENDAR = DecisionCalendar(interval_steps=8, lag_steps=3, total_steps=200)


def placement(pp_degree: int, dp_degree: int, bounds: tuple[int, ...], workers: str) -> Placement:
    leaves = tuple(range(0, 9, 8 // dp_degree))
    return Placement(
        pp_degree=pp_degree, dp_degree=dp_degree, stage_bounds=bounds, leaf_bounds=leaves, workers=tuple(workers)
    )  # fmt: skip


def decision(number: int, freeze_point: int, kind: str = "keep", **fields: object) -> Decision:
    effective = CALENDAR.effective_step(number)
    values = {"number": number, "interval": number, "effective_step": effective, "freeze_point": freeze_point}
    return Decision(**values, kind=kind, **fields)


def record(step: int, lineage: int = 0, loss: float = 1.0, numerics_hash: str = "") -> StepRecord:
    return StepRecord(
        lineage=lineage, step=step, loss=loss, learning_rate=0.1, gradient_norm=1.0, freeze_point=0, generation="1.1",
        pp_degree=1, dp_degree=1, step_seconds=0.1, numerics_hash=numerics_hash,
    )  # fmt: skip


def interval(number: int, lineage: int = 0) -> IntervalStatistics:
    return IntervalStatistics(
        number=number, lineage=lineage, first_step=8 * number - 7, last_step=8 * number, freeze_point=0,
        unit_gradient_norms=(1.0,), unit_parameters=(1,), learning_rate=0.1, learning_rate_peak=0.1, loss_mean=1.0,
        accepted_steps=8,
    )  # fmt: skip


def test_state_survives_encoding_with_its_plan_and_decisions() -> None:
    decisions = (decision(1, 0), decision(2, 3, "freeze"))
    plan = Plan(
        generation=GenerationId(incarnation=2, counter=5), lineage=1, start="checkpoint", start_step=16,
        checkpoint_path="0/1.1/16", freeze_point=3, decision_number=2, placement=placement(2, 1, (0, 3, 6), "ab"),
        decisions=decisions,
    )  # fmt: skip
    state = DurableState(incarnation=2, counter=5, current=plan, decisions=decisions, max_lineage=1)
    assert decode_state(encode_state(state)) == state
    assert next_generation(state) == GenerationId(incarnation=2, counter=6)


def test_state_above_the_limit_is_refused_with_its_size() -> None:
    seeded = random.Random(0)
    kinds = ("freeze", "unfreeze")
    decisions = tuple(decision(number, 0, kinds[number % 2], reason=seeded.randbytes(100).hex()) for number in range(1, 2500))
    with pytest.raises(ValueError, match=r"the durable state is \d+ bytes, 204800 are allowed \(2499 decisions"):
        encode_state(DurableState(decisions=decisions))


def test_each_leader_raises_the_incarnation_and_fences_the_one_before(tmp_path: Path) -> None:
    store = DurableStore(LocalBackend(tmp_path))
    first, _ = store.take_over()
    second, cluster = store.take_over()
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert cluster.annotations[FENCE] == "1.0"
    with pytest.raises(Conflict, match=r"frostline.io/generation is '2.0', expected '1.0'"):
        store.write(first, first.model_copy(update={"lineage": 7}))
    store.write(second, second.model_copy(update={"counter": 1}))
    after = LocalBackend(tmp_path).read()
    assert after.annotations[FENCE] == "2.1"
    assert decode_state(after.annotations[PLAN]).lineage == 0


def test_a_write_whose_answer_was_lost_stands_in_nobodys_way(tmp_path: Path) -> None:
    """The stored state has our incarnation and was sent to nobody: it is replaced, with the annotations that people read."""
    backend = LocalBackend(tmp_path)
    store = DurableStore(backend)
    known, _ = store.take_over()
    store.write(known, known.model_copy(update={"counter": 1, "state": "running", "requested_workers": 3}))
    store.write(known, known.model_copy(update={"counter": 1, "lineage": 2}))
    after = backend.read().annotations
    assert decode_state(after[PLAN]) == known.model_copy(update={"counter": 1, "lineage": 2})
    assert (after[FENCE], after[STATE]) == (f"{known.incarnation}.1", "waiting")
    assert REQUESTED_WORKERS not in after


class LosesAnAnswer(LocalBackend):
    """Carries out the first write and loses its answer; what it reads is from before that write, until a write is refused."""

    lost, refused = False, False

    def read(self) -> ClusterState:
        found = super().read()
        return found if self.refused else replace(found, annotations={})

    def patch_annotations(self, changes: dict[str, str | None], test: dict[str, str | None]) -> None:
        try:
            super().patch_annotations(changes, test)
        except Conflict:
            self.refused = True
            raise
        if not self.lost:
            self.lost = True
            raise ClusterError("the answer was lost")


def test_a_start_whose_first_write_was_answered_by_nobody_is_no_conflict_with_itself(tmp_path: Path) -> None:
    backend = LosesAnAnswer(tmp_path)
    store = DurableStore(backend)
    with pytest.raises(ClusterError):
        store.take_over()
    state, _ = store.take_over()
    assert (state.incarnation, backend.read().annotations[FENCE]) == (2, "2.0")


def test_a_start_after_a_lost_answer_still_finds_another_controller(tmp_path: Path) -> None:
    backend = LosesAnAnswer(tmp_path)
    store = DurableStore(backend)
    with pytest.raises(ClusterError):
        store.take_over()
    DurableStore(LocalBackend(tmp_path)).take_over()
    with pytest.raises(Conflict):
        store.take_over()


def test_an_annotation_goes_with_the_write_that_answers_it_unless_it_says_something_else_by_now(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    store = DurableStore(backend)
    known, _ = store.take_over()
    backend.patch_annotations({COMMAND: "freeze 2"}, {})
    answered = known.model_copy(update={"forced_freeze_point": 2})
    store.write(known, answered, {COMMAND: "freeze 2"})
    assert COMMAND not in backend.read().annotations
    backend.patch_annotations({COMMAND: "suspend"}, {})
    store.write(answered, answered.model_copy(update={"lineage": 3}), {COMMAND: "freeze 2"})
    after = backend.read().annotations
    assert (after[COMMAND], decode_state(after[PLAN]).lineage) == ("suspend", 3)


def test_journal_cuts_what_a_crash_left_half_written(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    journal = Journal(path)
    asyncio.run(journal.append([{"a": 1}, {"a": 2}]))
    journal.close()
    path.write_bytes(path.read_bytes() + b'{"a": 3')
    again = Journal(path)
    asyncio.run(again.append([{"a": 4}]))
    assert [line["a"] for line in again.lines()] == [1, 2, 4]
    again.close()


def test_full_disk_leaves_no_half_line_and_nothing_counts_as_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RecordLog(tmp_path / "metrics.jsonl")
    asyncio.run(log.take([record(1)], (), exact=True))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr("os.fsync", full)
        asyncio.run(log.take([record(2)], (), exact=True))
    assert log.durable_step(0, 0) == 1
    asyncio.run(log.take([record(2)], (), exact=True))
    assert log.durable_step(0, 0) == 2
    log.close()
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_records_are_unique_by_lineage_and_step_also_after_a_restart(tmp_path: Path) -> None:
    starts = (LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=2, kind="restore"))
    log = RecordLog(tmp_path / "metrics.jsonl")
    asyncio.run(log.take([record(2), record(1), record(2)], starts[:1], exact=True))
    asyncio.run(log.take([record(3, lineage=1), record(3), record(1)], starts, exact=True))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    keys = [(line["lineage"], line.get("step", line.get("starts_at_step"))) for line in lines]
    assert keys == [(0, 1), (0, 2), (1, 2), (1, 3)]
    again = RecordLog(tmp_path / "metrics.jsonl")
    assert (again.durable_step(1, 2), again.durable_step(0, 0), again.lineage) == (3, 2, 1)
    assert asyncio.run(again.take([record(3, lineage=1)], starts, exact=True)) == []
    again.close()


def test_redone_step_must_have_the_same_bits_under_the_same_numerics(tmp_path: Path) -> None:
    starts = (LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=0, kind="restore"))
    log = RecordLog(tmp_path / "metrics.jsonl")
    asyncio.run(log.take([record(1, numerics_hash="h", loss=0.1)], starts, exact=True))
    assert len(asyncio.run(log.take([record(1, lineage=1, numerics_hash="h", loss=0.1)], starts, exact=True))) == 1
    with pytest.raises(ResultsDiffer, match=r"step 1 of lineage 2 has loss 0.10000000000000002; it had 0.1 before"):
        asyncio.run(log.take([record(1, lineage=2, numerics_hash="h", loss=0.10000000000000002)], starts, exact=True))
    log.close()


def test_statistics_are_kept_once_and_acknowledged_without_gaps(tmp_path: Path) -> None:
    log = StatisticsLog(tmp_path / "statistics.jsonl")
    asyncio.run(log.take([interval(1), interval(1), interval(3)]))
    calendar = DecisionCalendar(8, 3, 100)
    assert log.durable_interval((LineageStart(lineage=0, starts_at_step=0),), calendar) == 1
    log.close()
    again = StatisticsLog(tmp_path / "statistics.jsonl")
    assert [one.number for one in again.all] == [1, 3]
    again.close()


def test_a_new_lineage_acknowledges_nothing_that_is_still_with_the_workers(tmp_path: Path) -> None:
    """Interval 3 ends at step 24; a lineage begins at step 25 before its statistics have come, and sends them as its own."""
    calendar, log = DecisionCalendar(8, 3, 100), StatisticsLog(tmp_path / "statistics.jsonl")
    before = (LineageStart(lineage=0, starts_at_step=0),)
    branch = (*before, LineageStart(lineage=1, starts_at_step=25, kind="restore"))
    assert log.durable_interval(branch, calendar) == 0
    asyncio.run(log.take([interval(1), interval(2)]))
    assert [log.durable_interval(lineages, calendar) for lineages in (before, branch)] == [2, 2]
    asyncio.run(log.take([interval(3).model_copy(update={"lineage": 1})]))
    assert log.durable_interval(branch, calendar) == 3
    asyncio.run(log.take([interval(4).model_copy(update={"lineage": 1})]))
    assert log.durable_interval(branch, calendar) == 4
    back = (*branch, LineageStart(lineage=2, starts_at_step=17, kind="restore"))
    assert log.durable_interval(back, calendar) == 2, "what the newest lineage cut off does not count"
    log.close()


def test_rollback_takes_the_place_of_what_it_takes_back() -> None:
    freeze = decision(2, 3, "freeze")
    rollback = decision(4, 0, "rollback", lineage=1, rollback_to_step=freeze.effective_step - 1)
    starts = (LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=18, kind="rollback"))
    timeline = surviving_decisions([decision(1, 0), freeze, decision(3, 3), rollback], starts, CALENDAR)
    assert [(one.number, one.effective_step, one.freeze_point) for one in timeline] == [(1, 11, 0), (2, 19, 0)]
    assert (in_force(timeline, 30).freeze_point, next_number(timeline)) == (0, 3)
    kept = surviving_statistics([interval(k) for k in (1, 2, 3, 4)] + [interval(3, lineage=1)], starts)
    assert [(one.number, one.lineage) for one in kept] == [(1, 0), (2, 0), (3, 1)]


def test_an_interval_that_was_sent_again_in_a_new_lineage_counts_once() -> None:
    starts = (LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=17, kind="restore"))
    kept = surviving_statistics([interval(1), interval(2, lineage=1), interval(2), interval(3)], starts)
    assert [(one.number, one.lineage) for one in kept] == [(1, 0), (2, 1)]


def test_restore_keeps_what_was_decided_from_statistics_before_it() -> None:
    starts = (LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=17, kind="restore"))
    timeline = surviving_decisions([decision(1, 0), decision(2, 3, "freeze"), decision(3, 4, "freeze")], starts, CALENDAR)
    assert [one.number for one in timeline] == [1, 2]  # 2 read steps up to 16 and is pending at 17
    assert [in_force(timeline, step).freeze_point for step in (18, 19)] == [0, 3]


def test_sources_prefer_owners_that_keep_the_unit_and_take_turns() -> None:
    base = placement(2, 2, (0, 3, 6), "abcd")  # a, c hold 0..2; b, d hold 3..5
    assert sources_of(base, placement(1, 2, (0, 6), "ac"), Pieces(6)) == ("a", "c", "a", "d", "b", "d")
    with pytest.raises(ValueError, match="unit 6 of 7 has no owner"):
        sources_of(base, base, Pieces(7))


def test_newest_checkpoint_is_the_highest_lineage_then_step_of_complete_ones(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for path, content in {
        "0/1.1/40": {"lineage": 0, "step": 40},
        "0/1.9/8": {"lineage": 1, "step": 8},
        "0/1.9/24": {"lineage": 1, "step": 24},
    }.items():
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "manifest.json").write_text(json.dumps(content))
    torn = tmp_path / "0/2.1/99"
    torn.mkdir(parents=True)
    (torn / "manifest.json").write_text('{"lineage": 9, "st')
    found = newest_checkpoint(tmp_path)
    assert (found.path, found.lineage, found.step) == ("0/1.9/24", 1, 24)


def test_replay_reads_the_last_word_on_each_decision(tmp_path: Path) -> None:
    freeze = decision(2, 3, "freeze")
    lines = [
        decision_line(decision(1, 0)),
        decision_line(freeze),
        {"kind": "plan"},
        decision_line(freeze.model_copy(update={"void": True})),
    ]
    (tmp_path / "plans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(one.number, one.kind, one.void) for one in read_replay(tmp_path)] == [(1, "keep", False), (2, "freeze", True)]
    with pytest.raises(ValueError, match=r"--replay .*nowhere: .*plans.jsonl cannot be read"):
        read_replay(tmp_path / "nowhere")
