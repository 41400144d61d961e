"""A leading controller's HTTP pages: metrics, the run's status, result and report. All are read-only.

/metrics  Prometheus' text    /status  JSON    /result  result.json    /report  report.html, drawn anew where it is old

Nobody is asked for a token: who reaches the port is the NetworkPolicy's matter (`kubernetes.network_policy.metrics_from`). So all
of it is bounded: connections, their time, and drawings. A controller that waits for the Lease serves /metrics alone, and says so.
"""

import asyncio
import json

from aiohttp import web

from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore
from frostline_controller.serving.drawing import DRAW_SECONDS, NotDrawn, Reports
from frostline_controller.serving.metrics import metrics_text, standby_text
from frostline_controller.serving.status import progress_text

CONNECTIONS_MAX = 16
REQUEST_SECONDS = 10.0
"""Time limit for a request to arrive, and for its answer to be read (in addition to the time of a drawing)."""
METRICS_TYPE = "text/plain; version=0.0.4"
PATHS = ("/metrics", "/status", "/result", "/report")


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: the HTTP status.
        text: the reason, in words.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Standby:
    """Pages of a controller that does not lead."""

    async def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content. Raises Refusal."""
        if path == "/metrics":
            return METRICS_TYPE, standby_text()
        raise Refusal(503, "this controller does not lead; the Service leads to the one that does")


class Pages:
    """Pages of a leader."""

    def __init__(self, facts: RunFacts, store: RunStore) -> None:
        self._facts, self._store = facts, store
        self._reports = Reports(store.places.path)

    async def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content. Raises Refusal."""
        if path == "/metrics":
            return METRICS_TYPE, metrics_text(self._facts, self._store)
        if path == "/status":
            return "application/json", progress_text(self._facts, self._store).encode()
        if path == "/result":
            return "application/json", await asyncio.to_thread(self._result)
        if path == "/report":
            return "text/html; charset=utf-8", await self._report()
        raise Refusal(404, f"unknown path; known are {', '.join(PATHS)}")

    def _result(self) -> bytes:
        if not self._store.places.result.exists():
            raise Refusal(404, "the run has not ended yet")
        return self._store.places.result.read_bytes()

    async def _report(self) -> bytes:
        try:
            return await asyncio.to_thread(self._reports.page)
        except NotDrawn as missing:
            raise Refusal(503 if missing.busy else 500, str(missing)) from None


class HungUp(asyncio.Protocol):
    """The protocol of connections above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection at once, unread."""
        transport.close()


class WebServer:
    """An HTTP server in the event loop in which it is started: its pages read what the reconciler changes in that loop.

    At most CONNECTIONS_MAX connections, each given REQUEST_SECONDS for its request; who comes beyond that is hung up on.
    """

    def __init__(self) -> None:
        self._pages: Standby | Pages = Standby()
        self._server: web.Server | None = None
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is free where 0 was asked for. Raises OSError where it is taken."""
        self._server = web.Server(self._answer, keepalive_timeout=REQUEST_SECONDS, access_log=None)
        self._listening = await asyncio.get_running_loop().create_server(self._connection, host, port)
        return int(self._listening.sockets[0].getsockname()[1])

    def lead(self, facts: RunFacts, store: RunStore) -> None:
        """Serve the run's pages from now on."""
        self._pages = Pages(facts, store)

    async def close(self) -> None:
        """Close all connections."""
        if self._listening is not None and self._server is not None:
            self._listening.close()
            await self._server.shutdown(0.1)

    def _connection(self) -> asyncio.Protocol:
        if self._server is None or len(self._server.connections) >= CONNECTIONS_MAX:
            return HungUp()
        protocol = self._server()
        # Whatever it does: a reader who takes nothing, or asks again and again, gives its place back.
        asyncio.get_running_loop().call_later(DRAW_SECONDS + 2 * REQUEST_SECONDS, _hang_up, protocol)
        return protocol

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method != "GET":
            return _refused(405, "pages are only read: GET")
        try:
            kind, content = await self._pages.page(request.path)
        except Refusal as refusal:
            return _refused(refusal.status, str(refusal))
        return web.Response(body=content, headers={"Content-Type": kind})


def _refused(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=json.dumps({"error": text}).encode(), headers={"Content-Type": "application/json"})


def _hang_up(protocol: web.RequestHandler) -> None:
    if protocol.transport is not None:
        protocol.transport.abort()
