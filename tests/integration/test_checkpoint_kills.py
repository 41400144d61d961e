"""Checkpoint writers, killed before every file operation and at any byte, or on a full disk. Real processes and signals."""

import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from frostline_controller.run.checkpoints import newest_checkpoint
from frostline_trainer.checkpoints.writing import WriterNotices
from tests.checkpoint_cases import new_writer, snapshot, steps_found, write_all

OPERATIONS = ("create", "write", "sync", "rename", "create", "write", "sync", "rename") * 2 + (
    "create",
    "write",
    "sync",
    "link",
    "remove",
)
"""The file operations of two units with their digests, the manifest, and the removal of the oldest checkpoint."""
FREE_SPACE = "free some space"


@pytest.fixture(scope="module")
def fork() -> Callable[..., int]:
    """Run a function of this module in a process of its own and return its exit status; torch is imported only once."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.checkpoint_cases"])

    def run(function: Callable[..., None], *arguments: object) -> int:
        process = context.Process(target=function, args=arguments)
        process.start()
        process.join(60)
        assert process.exitcode is not None, "the writer hangs"
        return process.exitcode

    return run


# ---- killed


def write_and_die(root: str, step: int, at: int) -> None:
    """Publish the checkpoint of `step`; SIGKILL at the `at`-th file operation."""
    done: list[str] = []

    def before(operation: str, step: int) -> None:
        done.append(operation)
        if len(done) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    write_all(snapshot(Path(root), step), notices=WriterNotices(before=before))
    assert tuple(done) == OPERATIONS, done


def write_up_to(root: str, step: int, size: int) -> None:
    """Publish the checkpoint of `step`; the kernel ends the process when a file is to grow beyond `size` bytes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    write_all(snapshot(Path(root), step))


def assert_sound(root: Path, step: int) -> bool:
    """Assert that a kill during the write of `step` left no checkpoint or a whole one, and that the next writer tidies up.

    Return True for a whole checkpoint.
    """
    found = steps_found(root)
    whole = step in found
    assert [one for one in found if one != step] in ([step - 2, step - 1], [step - 1] if whole else [0]), found
    newest = newest_checkpoint(root)
    assert newest is not None and newest.step == found[-1], "the controller reads what the trainer reads"
    write_all(snapshot(root, step + 1, counter=2))
    assert steps_found(root)[-1] == step + 1
    assert sorted(path.name for path in root.rglob("*") if path.suffix == ".partial" or path.name.startswith(".")) == []
    unfinished = [path for path in root.glob("0/*/*") if not (path / "manifest.json").exists()]
    assert unfinished == [], "swept by the next writer"
    return whole


def test_killed_before_any_file_operation_the_last_complete_checkpoint_is_what_is_found(
    tmp_path: Path, fork: Callable[..., int]
) -> None:
    whole = []
    for at in range(1, len(OPERATIONS) + 2):
        root = tmp_path / str(at)
        write_all(snapshot(root, 1), snapshot(root, 2))
        status = fork(write_and_die, str(root), 3, at)
        assert status == (0 if at > len(OPERATIONS) else -signal.SIGKILL)
        whole.append(assert_sound(root, 3))
    linked = OPERATIONS.index("link") + 1
    assert whole == [at > linked for at in range(1, len(OPERATIONS) + 2)], "the link is what makes it a checkpoint"


def test_killed_at_any_byte_the_last_complete_checkpoint_is_what_is_found(tmp_path: Path, fork: Callable[..., int]) -> None:
    write_all(snapshot(tmp_path / "sizes", 3))
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "sizes" / "0" / "1.1" / "3").iterdir()}
    largest = max(sizes.values())
    assert sizes["manifest.json"] == largest, "so the limit hits a unit's file, its digests or the manifest, by its size"
    for size in {*range(0, largest, 11), *(size - 1 for size in sizes.values()), largest}:
        root = tmp_path / str(size)
        write_all(snapshot(root, 1), snapshot(root, 2))
        status = fork(write_up_to, str(root), 3, size)
        assert status == (0 if size >= largest else -signal.SIGXFSZ), size
        assert assert_sound(root, 3) == (status == 0)


# ---- a full disk


def fill_up_and_free(root: str) -> None:
    """Write six checkpoints; for three the disk is full. Python ignores SIGXFSZ: a write beyond the limit is an error."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("frostline_trainer").addHandler(handler)
    logging.getLogger("frostline_trainer").setLevel(logging.INFO)
    trouble: list[tuple[int, str]] = []
    published: list[int] = []
    writer = new_writer(
        WriterNotices(
            lambda folder, manifest, seconds: published.append(manifest["step"]), lambda *reported: trouble.append(reported)
        )
    )
    folder = Path(root)
    for step in range(1, 7):
        if step == 2:
            make_full(folder)
        if step == 5:
            make_room(folder)
        writer.write(snapshot(folder, step, values=4000))
        writer.finish()
    writer.close()
    assert published == [1, 5, 6] and steps_found(folder) == [5, 6], published
    assert [step for step, _ in trouble] == [2], trouble
    warnings = [line for line in said if FREE_SPACE in line]
    assert len(warnings) == 1 and "training goes on" in warnings[0], said
    assert sum("written again" in line for line in said) == 1, said
    left = [path.name for path in folder.glob("0/1.1/*")]
    assert sorted(left) == ["5", "6"], left


def make_full(folder: Path) -> None:
    """Fill the disk: by a file that takes all space of a file system of its own, or else by a limit on every file's size."""
    if "FULL_DISK" in os.environ:
        with open(folder / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(b"x" * 4096)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))


def make_room(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_limit_on_files_costs_one_warning_and_later_checkpoints_work(tmp_path: Path, fork: Callable[..., int]) -> None:
    assert fork(fill_up_and_free, str(tmp_path)) == 0


def test_a_full_disk_costs_one_warning_and_later_checkpoints_work(tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=200k none {tmp_path} && FULL_DISK=1 exec {sys.executable} -c "
        f"'from tests.integration.test_checkpoint_kills import fill_up_and_free as f; f(\"{tmp_path}\")'"
    )
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*namespace, f"mount -t tmpfs none {tmp_path}"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets no user mount a file system of its own")
    ran = subprocess.run([*namespace, script], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
