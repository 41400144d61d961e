"""An append-only file of JSON lines, each on disk before its write is reported."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from frostline_contract.durable_files import make_folder_durably, named, sync_folder

Result = TypeVar("Result")
_UNDER_WAY: set[asyncio.Task[Any]] = set()


async def uncancelled(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` in a task of its own, which goes on to its end where the caller is cancelled.

    gRPC cancels a handler whose caller has gone or waits no longer: a write that the handler has begun is still completed, and
    the memory of it stays correct.
    """
    task = asyncio.ensure_future(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return await asyncio.shield(task)


async def all_written() -> None:
    """Return when no write is in progress any more, for any caller."""
    while _UNDER_WAY:
        await asyncio.wait(set(_UNDER_WAY))


class Journal:
    """Appends lines to one file. One writer; `append` returns when the lines are durable.

    Args:
        path: the file; its folder is made.
        may_write: called before each write, in its thread; raises where this process must not write any more.
    """

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None) -> None:
        self.path, self._may_write = Path(path), may_write
        make_folder_durably(self.path.parent)
        self._cut_torn_line()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  (open for the journal's life)
        self._order = asyncio.Lock()
        self._end = os.fstat(self._file.fileno()).st_size
        """The length of what is durable: beyond it is a write that is under way or has failed."""
        self._cut_to: int | None = None
        """The length to which the file is still to be cut: beyond it is what a failed write has left. None: nothing is."""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the durable lines, without the whole file in memory. Another thread may write meanwhile."""
        end, last = 0, self._end
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                end += len(line)
                if end > last:
                    return
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{self.path}, line {number}: is damaged ({error}); restore the file") from None

    async def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write and fsync, outside the event loop. Raises OSError (a full disk); then nothing may be reported as written.

        A cancelled caller changes nothing: its lines are written before those that come later.
        """
        if lines:
            data = "".join(json.dumps(line, allow_nan=True) + "\n" for line in lines).encode()
            await uncancelled(self._append(data))

    async def _append(self, data: bytes) -> None:
        async with self._order:
            await asyncio.to_thread(self._write, data)

    def close(self) -> None:
        """Close the file; all lines are on disk already."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        self._may_write()
        with named(self.path):
            self._cut_failed()
            start = os.fstat(self._file.fileno()).st_size
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._file.fileno(), data[written:])
                os.fsync(self._file.fileno())
                self._end = start + len(data)
            except OSError:
                self._cut_to = start
                with contextlib.suppress(OSError):  # the next write tries again
                    self._cut_failed()
                raise

    def _cut_failed(self) -> None:
        """Cut off what a failed write has left: half a line would be read as a whole one after the next append."""
        if self._cut_to is not None:
            os.ftruncate(self._file.fileno(), self._cut_to)
            self._cut_to = None

    def _cut_torn_line(self) -> None:
        """Cut an unfinished last line, which a crash in the middle of a write has left and which was never reported."""
        with open(self.path, "a+b") as file:
            size = file.seek(0, os.SEEK_END)
            end = size
            while end > 0:
                start = max(0, end - 65536)
                file.seek(start)
                cut = file.read(end - start).rfind(b"\n")
                if cut >= 0:
                    end = start + cut + 1
                    break
                end = start
            if end != size:
                file.truncate(end)
                os.fsync(file.fileno())
        sync_folder(self.path.parent)  # the file's own name
