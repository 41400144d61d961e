"""What test pods run: a web server that tells what it has got and does what it is told. Standard library only.

    python -m tests.cluster.tiny_pod [PORT] [--on-term exit|ignore|SECONDS]

GET /ready and /live answer 200 or, after /set?ready=0 or /set?live=0, 503. /env: its variables. /read?path=, /write?path=&text=:
files. /exit?code=: ends. /through?host=&port=: what another one's /env says.
"""

import json
import os
import signal
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

STATE = {"ready": "1", "live": "1"}
DEFAULT_PORT = 7001


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        try:
            code, body = answer(url.path.strip("/"), query)
        except OSError as error:
            code, body = 500, str(error)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())
        if url.path.strip("/") == "exit":
            os._exit(int(query["code"]))  # after its answer

    def log_message(self, *words: object) -> None:
        """Only what matters is printed."""


def answer(what: str, query: dict[str, str]) -> tuple[int, str]:
    if what in STATE:
        return (200 if STATE[what] == "1" else 503), STATE[what]
    if what == "set":
        STATE.update(query)
    elif what == "env":
        return 200, json.dumps(dict(os.environ))
    elif what == "read":
        return 200, Path(query["path"]).read_text()
    elif what == "write":
        Path(query["path"]).write_text(query["text"])
    elif what == "through":
        with urllib.request.urlopen(f"http://{query['host']}:{query['port']}/env", timeout=5) as there:
            return 200, there.read().decode()
    elif what != "exit":
        return 404, "what?"
    return 200, "done"


def main() -> int:
    words = sys.argv[1:]
    on_term = words.pop(words.index("--on-term") + 1) if "--on-term" in words else "exit"
    ports = [int(word) for word in words if word.isdigit()]

    def end(number: int, frame: object) -> None:
        print(f"told to end, {on_term}", flush=True)
        if on_term == "ignore":
            return
        if on_term != "exit":
            time.sleep(float(on_term))
        print("ends", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    host, port = os.environ.get("FROSTLINE_BIND_HOST", "0.0.0.0"), (ports or [DEFAULT_PORT])[0]
    server = ThreadingHTTPServer((host, port), Handler)
    print(f"serves {host}:{port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
