"""What a leading controller serves over HTTP: metrics, the run's status, result and report. Reading only; nothing here steers.

/metrics  Prometheus' text    /status  JSON    /result  result.json    /report  report.html, made anew
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

from frostline_controller.service.metrics import metrics_text
from frostline_controller.service.run import Run
from frostline_controller.service.status import progress_text

ANSWER_SECONDS = 5.0
REPORT_SECONDS = 120.0
PATHS = ("/metrics", "/status", "/result", "/report")
log = logging.getLogger(__name__)


class Refusal(Exception):
    """status: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Pages:
    """Answers by path, from any thread. loop: the reconciler's, where the run may be read."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._loop = run, loop
        self._reporting = threading.Lock()

    def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content. Raises Refusal."""
        if path == "/metrics":
            return "text/plain; version=0.0.4", self._in_loop(metrics_text)
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


def serve_pages(run: Run, host: str, port: int) -> ThreadingHTTPServer:
    """Answer in threads until `shutdown`; call it in the reconciler's event loop. Raises OSError."""
    pages = Pages(run, asyncio.get_running_loop())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                kind, content = pages.page(self.path.partition("?")[0])
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

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="web", daemon=True).start()
    return server
