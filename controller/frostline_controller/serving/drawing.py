"""The run's report, drawn on request: one drawing at a time, kept for a while, in a process of its own that is bounded."""

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from frostline_contract.run_directory import RunDirectory

DRAW_SECONDS = 120.0
FRESH_SECONDS = 15.0
"""A report that was drawn so lately is given out again: whoever may ask must not keep this machine drawing."""
DRAW_BYTES_MAX = 384 * 1024 * 1024
"""Memory of the drawing process: it shares the controller's limit, and must fail before it is reached."""


class NotDrawn(Exception):
    """There is no report to give out. busy: ask again later; else it cannot be drawn."""

    def __init__(self, text: str, busy: bool) -> None:
        super().__init__(text)
        self.busy = busy


class Reports:
    """Reports of one run. Callable from any thread; whoever comes while one is drawn gets the last one, or NotDrawn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drawing = threading.Lock()
        self._last: tuple[float, bytes] | None = None

    def page(self) -> bytes:
        """The report's HTML. Raises NotDrawn."""
        if self._last is not None and time.monotonic() - self._last[0] < FRESH_SECONDS:
            return self._last[1]
        if not self._drawing.acquire(blocking=False):
            if self._last is not None:
                return self._last[1]
            raise NotDrawn("the report is being drawn; ask again", busy=True)
        try:
            self._draw()
            self._last = (time.monotonic(), RunDirectory(self._folder).report.read_bytes())
            return self._last[1]
        except OSError as error:
            raise NotDrawn(f"the report cannot be read: {error}", busy=False) from error
        finally:
            self._drawing.release()

    def _draw(self) -> None:
        """In a process of its own: drawing takes memory that a controller should not keep."""
        command = [sys.executable, "-P", "-m", "frostline_controller.cli", "report", str(self._folder)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (DRAW_BYTES_MAX, DRAW_BYTES_MAX))
                _, said = process.communicate(timeout=DRAW_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise NotDrawn(f"the report was not made within {DRAW_SECONDS:.0f} s", busy=True) from None
            except ProcessLookupError:
                said = ""
        if process.returncode:
            raise NotDrawn(f"the report was not made: {said.strip()[-500:]}", busy=False)
