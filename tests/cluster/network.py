"""TCP between nodes, and from nodes to the API server: forwarded connections that a test can cut without closing them.

As with a broken cable, neither end learns of a cut: data under way wait, and go on when the cut is healed.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

PIECE_BYTES = 1 << 18
CONNECT_SECONDS, STOP_SECONDS = 5.0, 2.0


@dataclass(frozen=True)
class Target:
    """The destination of a connection. node: its node; empty for the control plane, which is never cut."""

    host: str
    port: int
    node: str = ""


class Network:
    """All forwarding of one cluster, in one thread. Methods may be called from any other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._cut: set[str] = set()
        self._healed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._open: dict[str, set[asyncio.WriteTransport]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def listen(self, node: str, host: str, port: int, choose: Callable[[], Target | None]) -> int:
        """Forward connections to host:port, the address of `node`'s programs, to the target that `choose` returns then; None:
        refused.

        Returns the port, which is chosen for 0. Raises OSError.
        """

        async def start() -> int:
            server = await asyncio.start_server(lambda reader, writer: self._forward(node, choose, reader, writer), host, port)
            self._servers.append(server)
            return server.sockets[0].getsockname()[1]

        return self._do(start())

    def cut(self, node: str, is_cut: bool) -> None:
        """Block all traffic between this node and others, or the API server; or let it pass again."""

        async def change() -> None:
            (self._cut.add if is_cut else self._cut.discard)(node)
            healed, self._healed = self._healed, asyncio.Event()
            healed.set()

        self._do(change())

    def reset(self, node: str) -> None:
        """Close all connections from or to the node, as a machine does that restarts."""

        async def abort() -> None:
            for transport in list(self._open.get(node, ())):
                _reset(transport)

        self._do(abort())

    def stop(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for transports in self._open.values():
                for transport in list(transports):
                    _reset(transport)
            self._cut.clear()
            self._healed.set()
            if rest := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(rest, timeout=STOP_SECONDS)  # they find their connections closed

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout=30)

    async def _forward(self, node: str, choose: Callable[[], Target | None], reader: asyncio.StreamReader,
                       writer: asyncio.StreamWriter) -> None:  # fmt: skip
        await self._whole(frozenset({node}))
        target = choose()
        if target is None:
            _reset(writer.transport)
            return
        ends = frozenset() if target.node == node else frozenset({node, target.node} - {""})
        await self._whole(ends)
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(target.host, target.port), CONNECT_SECONDS)
        except OSError:  # nobody listens there: our caller is told the same
            _reset(writer.transport)
            return
        with self._registered({node, target.node}, writer.transport, far_writer.transport):
            await asyncio.gather(self._pump(reader, far_writer, ends), self._pump(far_reader, writer, ends))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: frozenset[str]) -> None:
        """Copy until the end of the input, which is passed on; an error closes the other side."""
        try:
            while piece := await reader.read(PIECE_BYTES):
                await self._whole(ends)
                writer.write(piece)
                await writer.drain()
            await self._whole(ends)
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
        except OSError:  # reset by one side: the other hears of it too
            _reset(writer.transport)

    async def _whole(self, ends: frozenset[str]) -> None:
        while ends & self._cut:
            await self._healed.wait()

    @contextlib.contextmanager
    def _registered(self, nodes: set[str], *transports: asyncio.WriteTransport) -> Iterator[None]:
        for node in nodes:
            self._open.setdefault(node, set()).update(transports)
        try:
            yield
        finally:
            for transport in transports:
                transport.close()
            for node in nodes:
                self._open[node].difference_update(transports)


def _reset(transport: asyncio.WriteTransport) -> None:
    """Close a connection with a reset instead of an orderly end."""
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
