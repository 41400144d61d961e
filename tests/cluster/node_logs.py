"""The source of a node's logs for `kubectl logs`: the HTTPS endpoint that the API server calls."""

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

FOLLOW_SECONDS = 0.2
Find = Callable[[str, str, str, bool], tuple[Path, bool] | None]


class NodeLogs:
    """find(namespace, pod, container, previous): the file and whether it may still grow; None where there is none."""

    def __init__(self, host: str, certificate: Path, key: Path, find: Find) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                words, query = urlsplit(self.path).path.strip("/").split("/"), parse_qs(urlsplit(self.path).query)
                asked = (*words[1:], query.get("previous") == ["true"])
                found = find(*asked) if len(asked) == 4 and words[0] == "containerLogs" else None
                if found is None:
                    self.send_error(404, "no such container has run here")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                follows = query.get("follow") == ["true"]
                _send(self, found[0], query.get("tailLines"), lambda: follows and find(*asked) == (found[0], True))

            def log_message(self, *words: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer((host, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="node logs", daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _send(to: BaseHTTPRequestHandler, log: Path, tail: list[str] | None, grows: Callable[[], bool]) -> None:
    with open(log, "rb") as file:
        if tail is not None:
            kept = file.read().splitlines(keepends=True)
            to.wfile.write(b"".join(kept[max(0, len(kept) - int(tail[0])) :]))
        while True:
            still_grows = grows()
            while piece := file.read(1 << 16):
                to.wfile.write(piece)
            if not still_grows:
                return
            to.wfile.flush()
            time.sleep(FOLLOW_SECONDS)
