"""The run's report, drawn on request in a process with limits. At most one is drawn at a time, and it is kept for a while."""

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from frostline_contract.run_directory import RunDirectory

DRAW_SECONDS = 120.0
FRESH_SECONDS = 15.0
"""How long a drawn report is served again, so that frequent requests do not keep this machine busy."""
DRAW_BYTES_MAX = 384 * 1024 * 1024
"""Memory limit of the drawing process. It shares the controller's limit, so it must fail before that one is reached."""


class NotDrawn(Exception):
    """No report can be served.

    Args:
        text: the reason, in words.
        busy: whether a report is being drawn, so that the client may ask again later; otherwise no report can be drawn.
    """

    def __init__(self, text: str, busy: bool) -> None:
        super().__init__(text)
        self.busy = busy


class Reports:
    """Reports of one run. Callable from any thread. A call during a drawing returns the previous report, or raises NotDrawn."""

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
        """Draw in a separate process: drawing takes memory that a controller should not keep."""
        command = [sys.executable, "-P", "-m", "frostline_controller.report", str(self._folder)]
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
