"""An append-only file of JSON lines, on disk before anybody hears that it was written."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Appends lines to one file. One writer; `append` returns when the lines are durable."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._cut_torn_line()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  (open for the journal's life)
        self._order = asyncio.Lock()

    def lines(self) -> Iterator[dict[str, Any]]:
        """What was written before, line by line, never the whole file in memory."""
        with open(self.path, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)

    async def append(self, lines: list[dict[str, Any]]) -> None:
        """Write and fsync, away from the event loop. Raises OSError (a full disk), then nobody was told anything."""
        if not lines:
            return
        data = "".join(json.dumps(line, allow_nan=True) + "\n" for line in lines).encode()
        async with self._order:
            await asyncio.to_thread(self._write, data)

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        start = os.fstat(self._file.fileno()).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file.fileno(), data[written:])
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), start)  # half a line would be read as a whole one after the next append
            raise

    def _cut_torn_line(self) -> None:
        """A crash in the middle of a write leaves an unfinished last line, which nobody was told of: it goes."""
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
