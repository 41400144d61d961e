"""The last checkpoint and the model of a run that has trained to its end: a failed write is tried again, and reported."""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from frostline_trainer.checkpoints import last_files as last_files_module
from frostline_trainer.checkpoints import saving as saving_module
from frostline_trainer.checkpoints.last_files import LastFiles, Patience
from frostline_trainer.checkpoints.reading import is_complete
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.step.run_state import RunState
from tests.unit.trainer.test_saving import Member

STATE = RunState(step=7)


class BadDisk:
    """A disk on which the given operations fail, so many times each. done: operations begun, by name."""

    def __init__(self, number: int = errno.EIO, **failures: int) -> None:
        self.number = number
        self.left, self.done = Counter(failures), Counter[str]()

    def __call__(self, operation: str, step: int) -> None:
        self.done[operation] += 1
        if self.left[operation] > 0:
            self.left[operation] -= 1
            raise OSError(self.number, f"{os.strerror(self.number)}, planted at {operation}")


def save(member: Member, mailbox: Mailbox | None = None, patient: bool = True) -> tuple[Path, str, list[int]]:
    moves: list[int] = []
    box = mailbox or Mailbox("a/1")
    files = LastFiles(member.saving, box, lambda: moves.append(1), patient)
    folder = files.hand_in(member.entered, STATE)
    return folder, files.checkpoint(member.entered, STATE, folder), moves


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "link"])
def test_a_last_checkpoint_that_fails_is_written_again(operation: str, tmp_path: Path) -> None:
    disk = BadDisk(**{operation: 1})
    member = Member(tmp_path, before=disk)
    folder, why_not, moves = save(member)
    member.saving.close()
    assert why_not == "" and is_complete(folder) and disk.left[operation] == 0
    reported = [event for event in member.events.events if event.kind == "checkpoint_failed"]
    assert len(reported) == 1 and reported[0].step == 7
    assert (
        f"its weights cannot be written ([Errno {errno.EIO}] {os.strerror(errno.EIO)}, planted at {operation}); waiting for up to"
        in reported[0].reason
    )
    assert [event.step for event in member.events.events if event.kind == "checkpoint"] == [7]
    assert len(moves) > 1, "who waits for the disk does not hang"


def test_a_run_that_has_failed_waits_for_no_disk(tmp_path: Path) -> None:
    disk = BadDisk(create=100)
    member = Member(tmp_path, before=disk)
    folder, why_not, _ = save(member, patient=False)
    member.saving.close()
    assert "planted at create" in why_not and not is_complete(folder) and disk.done["create"] == 1


def test_what_no_room_helps_is_not_waited_for(tmp_path: Path) -> None:
    disk = BadDisk(number=errno.EFBIG, create=100)
    member = Member(tmp_path, before=disk)
    _, why_not, _ = save(member)
    member.saving.close()
    assert "File too large" in why_not and disk.done["create"] == 1


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    mailbox = Mailbox("a/1")
    disk = BadDisk(create=100)

    def asked_to_stop(operation: str, step: int) -> None:
        mailbox.put_notice(drain="Ctrl-C")
        disk(operation, step)

    member = Member(tmp_path, before=asked_to_stop)
    _, why_not, _ = save(member, mailbox)
    member.saving.close()
    assert "planted at create" in why_not and disk.done["create"] == 1


def test_patience_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_module, "PATIENCE_SECONDS", 3.0)
    disk = BadDisk(create=100)
    member = Member(tmp_path, before=disk)
    folder, why_not, _ = save(member)
    member.saving.close()
    assert "planted at create" in why_not and not is_complete(folder)
    assert 2 <= disk.done["create"] <= 4
    assert [event.kind for event in member.events.events] == ["checkpoint_failed"], "told once, however often it is tried"


def test_pauses_grow_and_end_with_the_patience() -> None:
    patience = Patience(3600.0)
    first, second = patience.next_try(), patience.next_try()
    assert second - first >= last_files_module.FIRST_PAUSE_SECONDS
    assert Patience(0.0).over and not patience.over


def test_a_disk_that_stands_still_is_told_and_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled file system excludes no worker: another worker would stall there as well."""
    monkeypatch.setattr(saving_module, "STALLED_SECONDS", 0.4)
    disk = BadDisk()
    released: list[int] = []

    def stalls(operation: str, step: int) -> None:
        disk(operation, step)
        while operation == "sync" and disk.done["sync"] == 1 and not any("no answer" in one.reason for one in reported()):
            last_files_module.time.sleep(0.05)
        released.append(1)

    member = Member(tmp_path, before=stalls)

    def reported() -> list[object]:
        return list(member.events.events)

    folder, why_not, moves = save(member)
    member.saving.close()
    assert why_not == "" and is_complete(folder) and released
    assert "no answer from the disk for 0.4 s" in member.events.events[0].reason
    assert len(moves) >= 2


def test_a_model_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """A file stands in the model's place until the run has reported it."""
    member = Member(tmp_path)
    folder, why_not, _ = save(member)
    assert why_not == ""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    def moved() -> None:
        if any(event.kind == "checkpoint_failed" for event in member.events.events) and blocked.is_file():
            blocked.unlink()

    files = LastFiles(member.saving, Mailbox("a/1"), moved)
    assert files.model(member.context, folder, blocked / "model", 7) == ""
    assert (blocked / "model" / "config.json").exists()
    member.saving.close()
