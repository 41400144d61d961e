"""Durable files: a file is written whole or not at all, and content and name are on disk when the call returns.

Every file that has to outlive a crash or a power cut is written by one of these functions. The content is first written to a
draft: a file in the same folder with a random name, so that two processes that write the same file never share a draft, not even
where both are process 1 of a container.
"""

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PRIVATE, PUBLIC = 0o600, 0o666
"""Access modes: for the user alone; for everybody whom the umask allows."""
WRITE_BYTES = 4 << 20
"""Bytes of a large file that one call writes."""

DRAFT = re.compile(r"\..+\.[0-9a-f]{32}")
"""The name of a draft."""

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a link fails with on a volume without hard links, such as a mounted bucket, SMB or FAT."""

Before = Callable[[str], None]
"""Called before each operation with its name: create, write, sync, rename or link."""


def replace_durably(path: Path, text: str, mode: int = PUBLIC) -> None:
    """Replace a file's content atomically: a reader sees the old content or the new one. Raises OSError."""
    path = Path(path)
    with _draft(path, text.encode(), mode) as draft:
        os.replace(draft, path)
    sync_folder(path.parent)


def create_durably(path: Path, text: str, mode: int = PUBLIC) -> bool:
    """Create a file with its whole content; False where it exists already. Raises OSError.

    Of several processes that create the same file exactly one succeeds: a link, unlike a rename, fails where the name is taken.
    """
    path = Path(path)
    make_folder_durably(path.parent)
    with _draft(path, text.encode(), mode) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


def replace_through(draft: Path, path: Path, content: bytes, before: Before) -> None:
    """Replace a large file's content atomically by way of a draft. Raises OSError.

    The folder is not synced, so that many files may share one call of `sync_folder`.

    Args:
        draft: a file in the same folder, which stays if the writer is killed.
        path: the file.
        content: the file's new content.
        before: called before each operation.
    """
    _write_synced(draft, content, before)
    before("rename")
    os.replace(draft, path)


def create_through(draft: Path, path: Path, content: bytes, before: Before, folders: Sequence[Path]) -> bool:
    """Create a file with its whole content, by way of a draft; False where the file exists already. Raises OSError.

    Args:
        draft: a file in the same folder; removed before this function returns.
        path: the file.
        content: the whole content.
        before: called before each operation.
        folders: synced before the file gets its name, so that all files which the content refers to are on disk by then.
    """
    try:
        _write_synced(draft, content, before)
        for folder in folders:
            sync_folder(folder)
        before("link")
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    sync_folder(path.parent)
    return True


class NoHardLinks(OSError):
    """A volume has no hard links, by which exactly one of several processes creates a file."""


def try_to_link(file: Path) -> None:
    """Link a file to another name in its folder, and remove that name. Raises NoHardLinks, or OSError for any other failure."""
    linked = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        os.link(file, linked)
    except OSError as error:
        if error.errno in NO_LINKS:
            raise NoHardLinks(f"its volume has no hard links: {error.strerror}") from error
        raise
    linked.unlink()


def make_folder_durably(folder: Path) -> None:
    """Make a folder and its parents, where they are missing. Raises OSError."""
    folder = Path(folder)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that killed writers have left in a folder. Raises OSError.

    Only the folder's sole writer may call it: the draft of another living writer would be removed too.
    """
    for file in Path(folder).glob(".*"):
        if DRAFT.fullmatch(file.name):
            file.unlink(missing_ok=True)


def move_durably(source: Path, target: Path) -> None:
    """Rename a file or folder whose content is on disk already. Raises OSError."""
    os.rename(source, target)
    sync_folder(Path(target).parent)


def sync_file(path: Path) -> None:
    """Flush a file that other code has written to disk. Raises OSError."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk: files that were created, renamed or removed in it. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Complete an OSError of a write to an open file, which has no file name, by the name: somebody may have to free space."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def _write_synced(path: Path, content: bytes, before: Before) -> None:
    before("create")
    make_folder_durably(path.parent)
    with open(path, "wb", buffering=0) as file:
        left = memoryview(content)
        while left:
            before("write")
            left = left[file.write(left[:WRITE_BYTES]) :]
        before("sync")
        os.fsync(file.fileno())


@contextlib.contextmanager
def _draft(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """A synced file with the content, in the folder of `path`; removed at the end whatever happens."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with named(path), os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
