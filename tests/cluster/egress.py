"""The API server's connections to pods: a proxy with the pods' real addresses (`addresses`). `kubectl get --raw` needs it."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

from tests.cluster.addresses import real

PIECE_BYTES = 1 << 16
DONE = b"HTTP/1.1 200 Connection established\r\n\r\n"
NOBODY = b"HTTP/1.1 502 Bad Gateway\r\n\r\n"


def egress_selection(socket: Path) -> dict[str, Any]:
    """Return the API server's configuration: all its connections into the cluster go through this socket, by HTTP CONNECT."""
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(socket)}}}
    selections = [{"name": "cluster", "connection": connection}]
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": selections,
    }


class Egress:
    """The proxy. socket: of the file system; at most about a hundred characters."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="egress", daemon=True)

    def start(self) -> None:
        self._thread.start()
        listening = asyncio.start_unix_server(self._serve, path=self.socket)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()

    def stop(self) -> None:
        """Stop the proxy; open connections end with it."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            asked = await reader.readuntil(b"\r\n\r\n")
            host, _, port = asked.split()[1].decode().rpartition(":")
            try:
                there = await asyncio.open_connection(real(host) if host.startswith("10.") else host, int(port))
            except OSError:
                writer.write(NOBODY)
            else:
                writer.write(DONE)
                await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
