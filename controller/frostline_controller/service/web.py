"""What a leading controller serves over HTTP: metrics, the run's status, result and report. Reading only; nothing here steers.

/metrics  Prometheus' text    /status  JSON    /result  result.json    /report  report.html, drawn anew where it is old

Nobody is asked for a token: who reaches the port is the NetworkPolicy's matter (`kubernetes.network_policy.metrics_from`). So all
of it is bounded: connections, their time, and drawings. A controller that waits for the Lease serves /metrics alone, and says so.
"""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore
from frostline_controller.service.drawing import NotDrawn, Reports
from frostline_controller.service.metrics import metrics_text, standby_text
from frostline_controller.service.status import progress_text

ANSWER_SECONDS = 5.0
CONNECTIONS_MAX = 16
REQUEST_SECONDS = 10.0
"""From a connection until its request must be there; and for each piece of the answer."""
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

    def __init__(self, facts: RunFacts, store: RunStore, loop: asyncio.AbstractEventLoop) -> None:
        self._facts, self._store, self._loop = facts, store, loop
        self._reports = Reports(store.places.path)

    def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content. Raises Refusal."""
        if path == "/metrics":
            return METRICS_TYPE, self._in_loop(metrics_text)
        if path == "/status":
            return "application/json", self._in_loop(progress_text).encode()
        if path == "/result":
            return "application/json", self._file(self._store.places.result, "the run has not ended yet")
        if path == "/report":
            return "text/html; charset=utf-8", self._report()
        raise Refusal(404, f"unknown path; known are {', '.join(PATHS)}")

    def _in_loop(self, read: Callable[[RunFacts, RunStore], Any]) -> Any:
        async def call() -> Any:
            return read(self._facts, self._store)

        asking: Coroutine[Any, Any, Any] = call()
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop).result(ANSWER_SECONDS)
        except TimeoutError:
            raise Refusal(503, "the reconciler is busy; ask again") from None

    def _file(self, file: Path, absent: str) -> bytes:
        if not file.exists():
            raise Refusal(404, absent)
        return file.read_bytes()

    def _report(self) -> bytes:
        try:
            return self._reports.page()
        except NotDrawn as missing:
            raise Refusal(503 if missing.busy else 500, str(missing)) from None


class _BoundedServer(ThreadingHTTPServer):
    """At most CONNECTIONS_MAX connections, each given REQUEST_SECONDS for its request; who comes beyond that is hung up on."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._reading: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._reading[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._slots.release()

    def has_asked(self, request: socket.socket) -> None:
        """Its request is there, or it is gone."""
        self._reading.pop(request, None)

    def service_actions(self) -> None:
        """Called twice a second: whoever is still writing its request after REQUEST_SECONDS is cut off."""
        now = time.monotonic()
        for request, since in list(self._reading.items()):
            if now - since > REQUEST_SECONDS:
                with suppress(OSError):  # it has gone by itself
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is nothing to log."""


class WebServer:
    """Answers in threads from its making until `close`. Raises OSError where the port is taken."""

    def __init__(self, host: str, port: int) -> None:
        self._pages: Standby | Pages = Standby()
        this = self

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS

            def do_GET(self) -> None:
                this._server.has_asked(self.connection)
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

        self._server = _BoundedServer((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="web", daemon=True).start()

    def lead(self, facts: RunFacts, store: RunStore) -> None:
        """From now on the pages are the run's. Call it in the reconciler's event loop."""
        self._pages = Pages(facts, store, asyncio.get_running_loop())

    def close(self) -> None:
        """Blocking."""
        self._server.shutdown()
        self._server.server_close()
