"""What a leading controller serves over HTTP: metrics, the run's status, result and report. Reading only; nothing here steers.

/metrics  Prometheus' text    /status  JSON    /result  result.json    /report  report.html, made anew

A controller that waits for the Lease serves /metrics alone, which says so.
"""

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from frostline_controller.service.metrics import metrics_text, standby_text
from frostline_controller.service.run import Run
from frostline_controller.service.status import progress_text

ANSWER_SECONDS = 5.0
REPORT_SECONDS = 120.0
METRICS_TYPE = "text/plain; version=0.0.4"
PATHS = ("/metrics", "/status", "/result", "/report")
log = logging.getLogger(__name__)


class Refusal(Exception):
    """status: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Standby:
    """Pages of a controller that does not lead."""

    def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content. Raises Refusal."""
        if path == "/metrics":
            return METRICS_TYPE, standby_text()
        raise Refusal(503, "this controller does not lead; the Service leads to the one that does")


class Pages:
    """Pages of a leader, from any thread. loop: the reconciler's, where the run may be read."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._loop = run, loop
        self._reporting = threading.Lock()

    def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content. Raises Refusal."""
        if path == "/metrics":
            return METRICS_TYPE, self._in_loop(metrics_text)
        if path == "/status":
            return "application/json", self._in_loop(progress_text).encode()
        if path == "/result":
            return "application/json", self._file("result.json", "the run has not ended yet")
        if path == "/report":
            self._make_report()
            return "text/html; charset=utf-8", self._file("report.html", "no report was made")
        raise Refusal(404, f"unknown path; known are {', '.join(PATHS)}")

    def _in_loop(self, read: Callable[[Run], Any]) -> Any:
        async def call() -> Any:
            return read(self._run)

        asking: Coroutine[Any, Any, Any] = call()
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop).result(ANSWER_SECONDS)
        except TimeoutError:
            raise Refusal(503, "the reconciler is busy; ask again") from None

    def _file(self, name: str, absent: str) -> bytes:
        file = self._run.folder / name
        if not file.exists():
            raise Refusal(404, absent)
        return file.read_bytes()

    def _make_report(self) -> None:
        """In a process of its own: drawing takes memory that a controller should not keep."""
        with self._reporting:
            command = [sys.executable, "-m", "frostline_controller.cli", "report", str(self._run.folder)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=REPORT_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise Refusal(503, f"the report was not made within {REPORT_SECONDS:.0f} s") from None
            if done.returncode:
                raise Refusal(500, f"the report was not made: {done.stderr.strip()[-500:]}")


class WebServer:
    """Answers in threads from its making until `close`. Raises OSError where the port is taken."""

    def __init__(self, host: str, port: int) -> None:
        self._pages: Standby | Pages = Standby()
        this = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    kind, content = this._pages.page(self.path.partition("?")[0])
                    self._answer(200, kind, content)
                except Refusal as refusal:
                    self._answer(refusal.status, "application/json", json.dumps({"error": str(refusal)}).encode())

            def _answer(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                """Scrapes are nothing to log."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="web", daemon=True).start()

    def lead(self, run: Run) -> None:
        """From now on the pages are the run's. Call it in the reconciler's event loop."""
        self._pages = Pages(run, asyncio.get_running_loop())

    def close(self) -> None:
        """Blocking."""
        self._server.shutdown()
        self._server.server_close()
