"""Files that outlive a power cut: what is synced, in which order, seen at the operating system's own calls."""

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from frostline_contract.durable_files import create_durably, make_folder_durably, move_durably, remove_drafts, replace_durably
from frostline_controller.run.journal import Journal
from frostline_rpc.auth import OPERATOR, Tokens


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is synced, renamed and linked, in order, by paths relative to tmp_path; drafts are called "draft"."""
    noted: list[str] = []

    def name(path: str | os.PathLike[str]) -> str:
        relative = os.path.relpath(path, tmp_path)
        return "draft" if os.path.basename(relative).startswith(".") and relative != "." else relative

    def note(what: str) -> None:
        real = getattr(os, what)

        def noting(*given: int | str | os.PathLike[str]) -> object:
            places = [f"/proc/self/fd/{one}" if isinstance(one, int) else one for one in given]
            names = [name(os.readlink(one) if isinstance(given[0], int) else one) for one in places]
            noted.append(" ".join([what, *names]))
            return real(*given)

        monkeypatch.setattr(os, what, noting)

    for what in ("fsync", "replace", "link", "rename", "ftruncate"):
        note(what)
    return noted


def journal(folder: Path) -> None:
    made = Journal(folder / "new" / "journal.jsonl")
    asyncio.run(made.append([{"a": 1}]))
    made.close()


def torn_journal(folder: Path) -> None:
    (folder / "torn.jsonl").write_text('{"a": 1}\n{"a": ')
    Journal(folder / "torn.jsonl").close()


def moved(folder: Path) -> None:
    (folder / "a").touch()
    move_durably(folder / "a", folder / "b")


WRITERS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "replaced": (lambda folder: replace_durably(folder / "a", "text"), ["fsync draft", "replace draft a", "fsync ."]),
    "created below new folders": (
        lambda folder: create_durably(folder / "epochs" / "old" / "0", "text"),
        ["fsync epochs", "fsync .", "fsync draft", "link draft epochs/old/0", "fsync epochs/old"],
    ),
    "new folders": (lambda folder: make_folder_durably(folder / "a" / "b"), ["fsync a", "fsync ."]),
    "moved": (moved, ["rename a b", "fsync ."]),
    "a new journal": (journal, ["fsync .", "fsync new", "fsync new/journal.jsonl"]),
    "a torn journal": (torn_journal, ["fsync torn.jsonl", "fsync ."]),
    "tokens": (lambda folder: Tokens.create().write(folder / "a"), ["fsync draft", "replace draft a", "fsync ."]),
}


@pytest.mark.parametrize("case", WRITERS)
def test_content_is_on_disk_before_its_name_and_its_name_before_the_call_returns(
    case: str, done: list[str], tmp_path: Path
) -> None:
    write, expected = WRITERS[case]
    write(tmp_path)
    assert done == expected


def test_a_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_durably(tmp_path / "a", "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_durably(tmp_path / "a", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_writers_of_one_file_never_share_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former leader and its successor are both process 1 of their containers: the slower write is whole as well."""
    begun, over, sync = threading.Event(), threading.Event(), os.fsync
    texts = {"first": "1" * 5000, "second": "2"}

    def slow_for_the_first(handle: int) -> None:
        if threading.current_thread().name == "first" and not begun.is_set():
            begun.set()
            over.wait(60.0)
        sync(handle)

    monkeypatch.setattr(os, "fsync", slow_for_the_first)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first, second = (
        threading.Thread(target=replace_durably, args=(tmp_path / "job.yaml", text), name=name) for name, text in texts.items()
    )
    first.start()
    assert begun.wait(60.0)
    second.start()
    second.join()
    over.set()
    first.join()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("job.yaml", texts["first"])]


def test_secrets_are_for_the_user_alone_and_others_follow_the_umask(tmp_path: Path) -> None:
    tokens = Tokens.create()
    tokens.write(tmp_path / "tokens.json")
    replace_durably(tmp_path / "job.yaml", "")
    before = os.umask(0o077)
    os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("tokens.json", "job.yaml")]
    assert modes == [0o600, 0o666 & ~before]
    assert Tokens.read(tmp_path / "tokens.json").by_role[OPERATOR] == tokens.by_role[OPERATOR]


@pytest.mark.parametrize("content", ["", "[]", "{}", "\0\0", '{"worker": 1'])
def test_damaged_tokens_are_named_with_the_remedy(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokens.json: is damaged .*remove it while the run is stopped"):
        Tokens.read(tmp_path / "tokens.json")


def test_a_damaged_line_of_a_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "plans.jsonl").write_bytes(b'{"kind": "plan"}\n' + b"\0" * 4096 + b"\n")
    made = Journal(tmp_path / "plans.jsonl")
    with pytest.raises(ValueError, match=r"plans.jsonl, line 2: is damaged") as caught:
        list(made.lines())
    assert len(str(caught.value)) < 300
    made.close()


def test_drafts_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *given, **more: None)  # a killed writer cleans up nothing
        patch.setattr(os, "replace", lambda *given: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            replace_durably(tmp_path / "state.json", "half")
    others = [tmp_path / name for name in ("state.json", ".hidden", ".state.json.new")]
    for other in others:
        other.write_text("kept")
    assert len(list(tmp_path.iterdir())) == 4
    remove_drafts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
    remove_drafts(tmp_path / "nowhere")
