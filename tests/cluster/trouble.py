"""A proxy that makes the API server unreliable: it refuses, delays and breaks off requests at random, by a seed."""

import http.client
import json
import random
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.cluster.certificates import Authority

PASSED_ON = ("Authorization", "Content-Type", "Accept")
PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Mood:
    """The rates of failures. share: of the requests that are refused, with one of `statuses`. delay_seconds: longest delay of an
    answer.

    lost_share: of the requests that are carried out and never answered. watch_seconds: the longest time until a watch is broken
    off.
    """

    share: float = 0.2
    statuses: tuple[int, ...] = (409, 410, 429, 500, 503)
    delay_seconds: float = 0.3
    lost_share: float = 0.05
    watch_seconds: float = 3.0


class TroubledApi:
    """The proxy. host, port: its address, over TLS by `authority`, until `stop`. counts: its acts, by status or word."""

    def __init__(self, real_port: int, authority: Authority, folder: Path, mood: Mood, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._mood, self._random, self._real_port = mood, random.Random(seed), real_port
        self._trust = ssl.create_default_context(cafile=str(_written(authority, folder)))
        trouble = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def do_GET(self) -> None:
                trouble.answer(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def log_message(self, *words: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host, self.port = "127.0.0.1", int(self._server.server_address[1])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "trouble.crt", folder / "trouble.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, name="trouble", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        """Refuse a request, lose it, or pass it on."""
        body = to.rfile.read(int(to.headers.get("Content-Length") or 0))
        time.sleep(self._random.uniform(0, self._mood.delay_seconds))
        drawn = self._random.random()
        if drawn < self._mood.share:
            self._refuse(to, self._random.choice(self._mood.statuses))
            return
        real = http.client.HTTPSConnection("127.0.0.1", self._real_port, context=self._trust, timeout=90)
        try:
            real.request(to.command, to.path, body, {name: to.headers[name] for name in PASSED_ON if name in to.headers})
            answer = real.getresponse()
            if "watch=true" in to.path:
                self._relay_watch(to, answer)
            elif drawn < self._mood.share + self._mood.lost_share:
                answer.read()
                self.counts["lost"] += 1
                to.close_connection = True
            else:
                self._reply(to, answer.status, answer.read())
        finally:
            real.close()

    def _refuse(self, to: BaseHTTPRequestHandler, status: int) -> None:
        self.counts[str(status)] += 1
        said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "a bad day", "code": status}
        self._reply(to, status, json.dumps(said).encode())

    def _reply(self, to: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
        to.send_response(status)
        to.send_header("Content-Type", "application/json")
        to.send_header("Content-Length", str(len(content)))
        to.end_headers()
        to.wfile.write(content)

    def _relay_watch(self, to: BaseHTTPRequestHandler, answer: http.client.HTTPResponse) -> None:
        """Pass a watch on until its time is over; then the connection ends at any place of the stream."""
        end = time.monotonic() + self._random.uniform(0.5, 1.0) * self._mood.watch_seconds
        to.send_response(answer.status)
        to.send_header("Content-Type", "application/json")
        to.send_header("Connection", "close")
        to.end_headers()
        to.close_connection = True
        assert answer.fp is not None
        sock = answer.fp.raw._sock  # type: ignore[attr-defined]
        while (left := end - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                piece = answer.read1(PIECE_BYTES)
            except (TimeoutError, OSError):
                break
            if not piece:
                break
            to.wfile.write(piece)
            to.wfile.flush()
        self.counts["watches broken off"] += 1


def _written(authority: Authority, folder: Path) -> Path:
    """Write the authority's certificate, and the proxy's own beside it. Returns the path of the first."""
    authority.sign_server(folder / "trouble.crt", folder / "trouble.key", ("localhost",), ["127.0.0.1"])
    authority.write(folder / "ca.crt")
    return folder / "ca.crt"
