"""The HTTP server for a pod's probes, on a port of its own. The agent answers without any worker's help.

/started and /ready: every worker of the pod has joined the run since its process started, but for those that have ended for
good while others go on. /live: the agent answers. The answers do not depend on steps, Redis or the controller, since restarting
the pod for them would only lose its state.
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIVE, JOINED = ("/live",), ("/started", "/ready")


def serve_pod_health(host: str, port: int, missing: Callable[[], list[int]]) -> ThreadingHTTPServer:
    """Answer in threads until `shutdown`. missing(): local ranks whose worker has not joined. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path in LIVE:
                self._answer(200, "alive")
            elif self.path in JOINED:
                late = missing()
                self._answer(503 if late else 200, f"not joined yet: local ranks {late}" if late else "joined")
            else:
                self._answer(404, f"unknown path; known are {', '.join(LIVE + JOINED)}")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Do not log probes, which come every few seconds."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
