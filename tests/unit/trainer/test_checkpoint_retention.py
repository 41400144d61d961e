"""Checkpoints are kept while a reader may still need them. Leftovers of killed writers are removed."""

import json
import threading
from pathlib import Path

import pytest

from frostline_contract.epochs import MANIFEST_NAME, RunEpoch
from frostline_contract.plan import GenerationId
from frostline_trainer.checkpoints import retention as checkpoint_retention
from frostline_trainer.checkpoints.reading import is_complete
from frostline_trainer.checkpoints.retention import sweep
from tests.checkpoint_cases import new_writer, snapshot, steps_found, write_all


def freeze(effective_step: int, kind: str = "freeze") -> dict:
    return {"kind": kind, "effective_step": effective_step}


def test_old_checkpoints_go_but_the_best_and_the_one_before_a_freeze_stay(tmp_path: Path) -> None:
    fields = {1: {"guard_loss": 0.1}, 3: {"before_freeze": True}, 4: {"guard_loss": 0.5}}
    write_all(*(snapshot(tmp_path, step, **fields.get(step, {})) for step in range(1, 7)))
    assert steps_found(tmp_path) == [1, 3, 5, 6]
    assert not (tmp_path / "0" / "1.1" / "2").exists()


def test_the_best_is_the_first_of_those_that_carry_its_loss(tmp_path: Path) -> None:
    """Manifests have the best loss so far, and 1000 comes before 900 as text."""
    losses = {600: 0.5, 900: 0.2, 1000: 0.2, 1100: 0.2, 1200: 0.2}
    write_all(*(snapshot(tmp_path, step, guard_loss=loss) for step, loss in losses.items()))
    assert steps_found(tmp_path) == [900, 1100, 1200]


def test_the_best_stays_through_a_rollback_that_goes_back_to_after_it(tmp_path: Path) -> None:
    losses = {900: 0.2, 1000: 0.2, 1100: 0.2}
    write_all(*(snapshot(tmp_path, step, guard_loss=loss) for step, loss in losses.items()), keep_last=4)
    write_all(*(snapshot(tmp_path, step, counter=2, lineage=1, guard_loss=0.2) for step in (1001, 1002, 1003)))
    assert steps_found(tmp_path) == [900, 1002, 1003]


def test_those_that_the_guard_may_still_ask_for_stay_however_many_come_after(tmp_path: Path) -> None:
    """Freezes after steps 2, 10 and 12 are watched for 12 steps: 2 is confirmed by step 20."""
    decisions = [freeze(3), freeze(7, "keep"), freeze(11), freeze(13)]
    snapshots = [
        snapshot(tmp_path, step, state={"decisions": [one for one in decisions if one["effective_step"] <= step]})
        for step in range(1, 21)
    ]
    snapshots[1].manifest["before_freeze"] = True
    write_all(*snapshots[:14], watch_steps=12)
    assert steps_found(tmp_path) == [2, 10, 12, 13, 14]
    write_all(*snapshots[14:], watch_steps=12)
    assert steps_found(tmp_path) == [10, 12, 19, 20], "10 and 12 were taken for another reason, and are needed all the same"


def test_the_last_one_before_a_freeze_stays_for_good(tmp_path: Path) -> None:
    write_all(*(snapshot(tmp_path, step, before_freeze=step in (1, 2)) for step in range(1, 9)))
    assert steps_found(tmp_path) == [2, 7, 8]


def test_the_last_one_before_the_cache_was_asked_stays_for_good(tmp_path: Path) -> None:
    write_all(*(snapshot(tmp_path, step, state={"cache_step": 4 if step >= 4 else 0}) for step in range(1, 9)))
    assert steps_found(tmp_path) == [3, 7, 8]


def test_the_last_one_that_an_audit_covers_stays_until_the_next_audit(tmp_path: Path) -> None:
    write_all(*(snapshot(tmp_path, step, state={"audited_step": 5 if step >= 5 else 0}) for step in range(1, 9)))
    assert steps_found(tmp_path) == [5, 7, 8]
    write_all(snapshot(tmp_path, 9, state={"audited_step": 8}))
    assert steps_found(tmp_path) == [8, 9]


def test_the_one_before_the_newest_stays_for_whoever_is_reading_it(tmp_path: Path) -> None:
    write_all(*(snapshot(tmp_path, step) for step in range(1, 5)), keep_last=1)
    assert steps_found(tmp_path) == [3, 4]


def begin_epoch(root: Path, start_from: str) -> None:
    (root / "epochs").mkdir()
    (root / "epochs" / "1.json").write_text(RunEpoch().raised(1, start_from, "1.2").text())


def test_what_the_epoch_began_from_stays_and_what_the_fenced_world_wrote_after_it_goes(tmp_path: Path) -> None:
    write_all(*(snapshot(tmp_path, step) for step in (5, 6, 7, 8)), keep_last=4)
    begin_epoch(tmp_path, "0/1.1/6")
    write_all(*(snapshot(tmp_path, step, counter=2, run_epoch=1, lineage=1) for step in range(7, 12)))
    assert steps_found(tmp_path) == [6, 10, 11]
    assert sorted(path.name for path in (tmp_path / "0" / "1.1").iterdir()) == ["6"]


def test_a_fenced_writer_removes_nothing(tmp_path: Path) -> None:
    """The writer has published, and the epoch is raised before it prunes."""
    write_all(*(snapshot(tmp_path, step) for step in (1, 2)), keep_last=4)
    writer = new_writer(keep_last=2)
    writer._notices.published = lambda folder, manifest, seconds: begin_epoch(tmp_path, "0/1.1/1")
    writer.write(snapshot(tmp_path, 3))
    writer.close()
    assert sorted(path.name for path in (tmp_path / "0" / "1.1").iterdir()) == ["1", "2", "3"]


# ---- leftovers


def unfinished(root: Path, place: str) -> Path:
    folder = root / place
    folder.mkdir(parents=True)
    (folder / "unit-000.safetensors.partial").write_text("half")
    return folder


def test_unfinished_folders_of_older_generations_go_and_others_stay(tmp_path: Path) -> None:
    gone = [unfinished(tmp_path, place) for place in ("0/1.1/5", "0/1.1-lineage-1/5", "0/1.3/9", "0/1.5/2")]
    kept = [
        unfinished(tmp_path, place)
        for place in ("0/1.4/8", "0/1.5/7", "0/1.6/1", "0/2.1/1", "1/1.1/1", "notes/mine/3", "0/1.1/x")
    ]
    write_all(snapshot(tmp_path, 6, counter=5, base=4))
    assert [folder.exists() for folder in gone] == [False] * 4
    assert [folder.exists() for folder in kept] == [True] * 7
    assert not (tmp_path / "0" / "1.3").exists(), "nor is an empty generation left"
    assert list(tmp_path.glob(".*")) == []


def test_one_after_a_rollback_is_newer_than_those_that_its_generation_wrote_before(tmp_path: Path) -> None:
    kept, gone = unfinished(tmp_path, "0/1.2-lineage-1/250"), unfinished(tmp_path, "0/1.2/300")
    sweep(tmp_path / "0" / "1.2" / "310", None, set(), lambda operation: None)
    assert (kept.exists(), gone.exists()) == (True, False), "a late publisher of before the rollback"
    gone.mkdir(parents=True)
    sweep(tmp_path / "0" / "1.2-lineage-1" / "260", None, set(), lambda operation: None)
    assert (kept.exists(), gone.exists()) == (False, False)


def test_a_checkpoint_that_is_under_way_is_not_swept_by_its_own_writer(tmp_path: Path) -> None:
    writer = new_writer()
    waiting = snapshot(tmp_path, 1, units=(0,))
    writer.write(waiting)
    writer.write(snapshot(tmp_path, 2))
    writer.finish(0.2)
    assert steps_found(tmp_path) == [2] and waiting.folder.exists()
    write_all(snapshot(tmp_path, 1, units=(1,), publishes=False))
    writer.close()
    assert steps_found(tmp_path) == [1, 2]


def test_a_sweep_is_bounded_and_what_a_killed_sweep_left_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_retention, "SWEEP_MAX", 2)
    for step in range(5):
        unfinished(tmp_path, f"0/1.1/{step}")
    unfinished(tmp_path, ".swept-1")
    write_all(snapshot(tmp_path, 9, counter=2))
    assert len(list(tmp_path.glob("0/1.1/*"))) == 3
    assert not (tmp_path / ".swept-1").exists()


def test_a_checkpoint_that_is_completed_while_it_is_being_swept_comes_back(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, "0/1.1/5")

    def complete(operation: str) -> None:
        (folder / MANIFEST_NAME).write_text(json.dumps({"version": 1, "lineage": 0, "step": 5}))

    sweep(tmp_path / "0" / "1.2" / "6", None, set(), complete)
    assert is_complete(folder)


def test_two_that_sweep_at_once_do_not_hinder_each_other(tmp_path: Path) -> None:
    for step in range(20):
        unfinished(tmp_path, f"0/1.1/{step}")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            sweep(tmp_path / "0" / "1.2" / "6", GenerationId(incarnation=1, counter=9), set(), lambda operation: None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(tmp_path.glob("0/1.1/*")) == []
