"""Checkpoints are published whole, once, by any surviving member, and under the current run epoch only."""

import json
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from frostline_contract.epochs import MANIFEST_NAME, RunEpoch
from frostline_contract.lineage import Cuts, LineageStart
from frostline_trainer.checkpoints import writing as checkpoint_writing
from frostline_trainer.checkpoints.reading import (
    complete_checkpoints,
    is_complete,
    load_piece,
    read_manifest,
    refuse_other_data,
)
from frostline_trainer.checkpoints.writing import WriterNotices
from frostline_trainer.step.unit_state import run_digest, unit_digest
from frostline_trainer.verify import Replayer
from tests.checkpoint_cases import TABLE, content, new_writer, snapshot, steps_found, write_all


def wait_until(true: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def begin_epoch(root: Path, run_epoch: int, start_from: str) -> None:
    """Write the file that a controller leaves when it raises the epoch."""
    version = RunEpoch(version=run_epoch).raised(run_epoch, start_from, "2.9").model_copy(update={"version": run_epoch})
    (root / "epochs").mkdir(exist_ok=True)
    (root / version.file()).write_text(version.text())


class Received:
    """The messages of writers."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.trouble: list[tuple[int, str]] = []
        self.fenced: list[int] = []

    def notices(self) -> WriterNotices:
        return WriterNotices(
            lambda folder, manifest, seconds: self.published.append(manifest["step"]),
            lambda step, reason: self.trouble.append((step, reason)),
            self.fenced.append,
        )


@pytest.fixture
def received() -> Received:
    return Received()


# ---- publishing


def test_a_checkpoint_is_published_when_all_units_are_there_and_the_step_is_stable(tmp_path: Path, received: Received) -> None:
    writer = new_writer(received.notices())
    first = snapshot(tmp_path, 5, stable=False, units=(0,))
    writer.write(first)
    assert first.written.wait(120)
    write_all(snapshot(tmp_path, 5, units=(1,), publishes=False))
    time.sleep(5 * checkpoint_writing.POLL_SECONDS)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        read_manifest(first.folder)
    first.stable.set()
    writer.close()
    manifest = read_manifest(first.folder)
    assert received.published == [5] == steps_found(tmp_path)
    assert manifest["digest"] == run_digest([unit_digest(content(5, unit)) for unit in (0, 1)])
    assert sorted(path.name for path in first.folder.iterdir()) == [
        MANIFEST_NAME, "unit-000.safetensors", "unit-000.sha256", "unit-001.safetensors", "unit-001.sha256",
    ]  # fmt: skip


def test_a_checkpoint_of_other_data_is_refused_and_one_that_names_none_is_not(tmp_path: Path) -> None:
    refuse_other_data(tmp_path, {"dataset_digest": "aa"}, "aa")
    refuse_other_data(tmp_path, {}, "aa")
    with pytest.raises(ValueError, match="dataset_digest is bb, this run's is aa: another run has written that checkpoint"):
        refuse_other_data(tmp_path, {"dataset_digest": "bb"}, "aa")


def test_a_share_that_is_late_keeps_no_later_checkpoint_waiting(tmp_path: Path, received: Received) -> None:
    writer = new_writer(received.notices())
    writer.write(snapshot(tmp_path, 1, units=(0,)))
    writer.write(snapshot(tmp_path, 2))
    wait_until(lambda: received.published == [2])
    write_all(snapshot(tmp_path, 1, units=(1,), publishes=False))
    writer.close()
    assert received.published == [2, 1]
    assert steps_found(tmp_path) == [1, 2]


def test_a_member_that_cannot_write_its_share_ends_the_waiting_at_once(
    tmp_path: Path, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    writer = new_writer(received.notices())
    mine = snapshot(tmp_path, 1, units=(0,))
    writer.write(mine)
    assert mine.written.wait(120)
    (mine.folder / "unit-001.safetensors.partial").mkdir()  # a unit's file cannot be written over it
    theirs = Received()
    write_all(snapshot(tmp_path, 1, units=(1,), publishes=False), notices=theirs.notices())
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 25.0, "long before FINISH_SECONDS"
    assert [step for step, _ in received.trouble] == [step for step, _ in theirs.trouble] == [1]
    assert "directory" in received.trouble[0][1], "the reason is the one that the other member had"
    assert "directory" in writer.not_written[mine.folder]
    assert not mine.folder.exists(), "what was written of it is given back"
    assert "training goes on, free some space" in caplog.text


def test_a_writer_that_has_finished_takes_more(tmp_path: Path, received: Received) -> None:
    writer = new_writer(received.notices())
    for step in (1, 2):
        writer.write(snapshot(tmp_path, step))
        writer.finish()
        assert received.published[-1] == step
    writer.close()
    assert steps_found(tmp_path) == [1, 2]


def test_files_of_two_generations_make_no_checkpoint(tmp_path: Path, received: Received) -> None:
    stray = snapshot(tmp_path, 4, counter=2, units=(1,), publishes=False)
    stray.folder = tmp_path / "0" / "1.1" / "4"
    write_all(stray)
    write_all(snapshot(tmp_path, 4, units=(0,)), notices=received.notices())
    assert steps_found(tmp_path) == []
    assert "unit-001.safetensors was written by generation 1.2, the others by 1.1" in received.trouble[0][1]


# ---- a generation that failed


def test_after_a_failure_another_member_publishes_what_is_whole(tmp_path: Path, received: Received) -> None:
    other = snapshot(tmp_path, 3, units=(1,), publishes=False)
    survivor = new_writer(received.notices())
    survivor.write(other)
    dead = snapshot(tmp_path, 3, units=(0,), publishes=False)  # its publisher dies after its share, before the manifest
    write_all(dead)
    survivor.abandon()
    survivor.close()
    assert received.published == [3] == steps_found(tmp_path)


def test_after_a_failure_what_lacks_a_share_is_given_up_at_once(
    tmp_path: Path, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer = new_writer(received.notices())
    lacking = snapshot(tmp_path, 3, units=(0,))
    writer.write(lacking)
    started = time.monotonic()
    writer.abandon()
    writer.close()
    assert time.monotonic() - started < 25.0, "long before FINISH_SECONDS"
    assert writer.not_written[lacking.folder] == "unit-001.safetensors is missing"
    assert received.trouble == [], "a failure of a peer is no trouble with the disk"
    assert "given up: unit-001.safetensors is missing" in caplog.text


@pytest.mark.parametrize(("seen_step", "steps"), [(3, []), (4, [3])])
def test_after_a_failure_a_step_counts_as_stable_where_a_later_vote_was_seen(
    tmp_path: Path, seen_step: int, steps: list[int]
) -> None:
    writer = new_writer()
    writer.write(snapshot(tmp_path, 3, stable=False))
    writer.abandon(seen_step)
    writer.close()
    assert steps_found(tmp_path) == steps


def test_several_publish_at_once_and_one_manifest_comes_of_it(tmp_path: Path, received: Received) -> None:
    for step in range(1, 9):
        gate = threading.Barrier(3)

        def at_link(operation: str, step: int, gate: threading.Barrier = gate) -> None:
            if operation == "link":
                gate.wait(120)

        notices = received.notices()
        writers = [new_writer(WriterNotices(notices.published, notices.trouble, notices.fenced, at_link)) for _ in range(3)]
        write_all(snapshot(tmp_path, step, publishes=False))
        for writer in writers:
            writer.write(snapshot(tmp_path, step, units=(), publishes=True))
        for writer in writers:
            writer.close()
    assert received.published == list(range(1, 9))
    assert received.trouble == []
    assert steps_found(tmp_path) == [7, 8]
    assert not list(tmp_path.rglob("*.partial"))


# ---- run epochs


def test_a_writer_of_an_older_epoch_publishes_nothing_and_says_so_once(
    tmp_path: Path, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    write_all(snapshot(tmp_path, 1))
    writer = new_writer(received.notices())
    late = snapshot(tmp_path, 2, stable=False)
    writer.write(late)
    assert late.written.wait(120)
    begin_epoch(tmp_path, 1, "0/1.1/1")
    late.stable.set()
    writer.write(snapshot(tmp_path, 3))
    wait_until(lambda: received.fenced)
    writer.abandon()
    writer.close()
    assert (received.fenced, received.published, received.trouble) == ([1], [], [])
    assert steps_found(tmp_path) == [1]
    assert caplog.text.count("run epoch 1 has begun") == 1


def test_a_manifest_that_slips_past_the_epoch_check_is_nobodys_checkpoint(tmp_path: Path, received: Received) -> None:
    write_all(snapshot(tmp_path, 1))

    def raise_at_link(operation: str, step: int) -> None:
        if operation == "link":
            begin_epoch(tmp_path, 1, "0/1.1/1")

    slipped = snapshot(tmp_path, 2)
    write_all(slipped, notices=WriterNotices(received.notices().published, before=raise_at_link))
    assert is_complete(slipped.folder) and received.published == [2]
    assert steps_found(tmp_path) == [1], "it lies under the old epoch, after the point where the new one began"
    write_all(snapshot(tmp_path, 2, counter=9, run_epoch=1, lineage=1))
    assert [folder.parts[-3:] for folder, _ in complete_checkpoints(tmp_path)] == [("0", "1.1", "1"), ("1", "1.9", "2")]
    assert not slipped.folder.exists(), "the epoch's own writer removes it"


def test_an_epoch_object_that_was_removed_is_trouble(tmp_path: Path, received: Received) -> None:
    write_all(snapshot(tmp_path, 2, run_epoch=1), notices=received.notices())
    assert "its object has been removed" in received.trouble[0][1]
    assert steps_found(tmp_path) == []


# ---- reading


def test_a_damaged_checkpoint_is_named_and_passed_over_and_never_removed(tmp_path: Path) -> None:
    written = snapshot(tmp_path, 3)
    write_all(written)
    manifest = read_manifest(written.folder)
    path = written.folder / manifest["units"][1]["file"]
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"unit-001\.safetensors: cannot be read"):
        load_piece(written.folder, manifest, TABLE, 1)
    torch_bytes = torch.zeros(2)
    assert torch.equal(load_piece(written.folder, manifest, TABLE, 0)["weight/a"], torch_bytes + 30)
    (written.folder / MANIFEST_NAME).write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(ValueError, match="checkpoint version 99"):
        read_manifest(written.folder)
    write_all(*(snapshot(tmp_path, step, counter=2) for step in (4, 5, 6)))
    assert steps_found(tmp_path) == [5, 6]
    assert is_complete(written.folder)
    (written.folder / MANIFEST_NAME).write_text("{")
    with pytest.raises(ValueError, match="no complete checkpoint"):
        read_manifest(written.folder)


@pytest.mark.parametrize(
    ("lineage", "step", "usable"), [(0, 10, True), (1, 10, True), (0, 16, False), (1, 16, True), (2, 10, False)]
)
def test_verification_starts_from_no_checkpoint_that_a_rollback_took_back(lineage: int, step: int, usable: bool) -> None:
    """Lineage 1 began at step 10: there is a checkpoint of step 10 in both lineages, and of step 16. Lineage 2 has no record."""
    records = {number: SimpleNamespace(lineage=int(number > 10)) for number in range(1, 21)}
    replayer = SimpleNamespace(records=records, cuts=Cuts((LineageStart(lineage=1, starts_at_step=10),)))
    assert Replayer._is_of_this_history(replayer, {"lineage": lineage, "step": step}) == usable  # type: ignore[arg-type]
