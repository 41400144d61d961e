"""A cheap gRPC client: HTTP/2 frames written by hand, so that a thousand clients fit on the cores that the controller leaves.

To the server this is a gRPC client: a connection of its own, calls with headers, token and deadline, acknowledged pings and
settings, keepalive. Features that only a client needs are left out: no headers are read, so an error is a call that ends
without a message.
"""

import asyncio
import struct
from collections.abc import Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
TABLE_SIZE, INITIAL_WINDOW = 1, 4
WINDOW_MAX, WINDOW_DEFAULT = 2**31 - 1, 65_535
KEEPALIVE_SECONDS = 10.0
"""The same value as in `frostline_rpc.channel`, for the real clients."""


class CallFailed(Exception):
    """A call ended without an answer, or its connection did."""


class Call:
    """One call. on_message: called with each message of the answer. done: the future of the call's end."""

    def __init__(self, number: int, on_message: Callable[[bytes], None], done: "asyncio.Future[None]") -> None:
        self.number, self.on_message, self.done = number, on_message, done
        self.received = bytearray()

    def take(self, data: bytes) -> None:
        """Read a part of the stream's body. Five bytes precede each message; the last four are its length."""
        self.received += data
        while len(self.received) >= 5:
            end = 5 + int.from_bytes(self.received[1:5])
            if len(self.received) < end:
                return
            message = bytes(self.received[5:end])
            del self.received[:end]
            self.on_message(message)


class Connection(asyncio.Protocol):
    """One HTTP/2 connection, made by `await open_connection(...)`."""

    def __init__(self, authority: str, token: str) -> None:
        self._common = _literals(
            (":method", "POST"), (":scheme", "http"), (":authority", authority), ("te", "trailers"),
            ("content-type", "application/grpc"), ("user-agent", "frostline-benchmark"), ("authorization", f"Bearer {token}"),
        )  # fmt: skip
        self._headers: dict[tuple[str, float], bytes] = {}
        self._received = bytearray()
        self._calls: dict[int, Call] = {}
        self._next, self._window = 1, WINDOW_DEFAULT
        self._loop = asyncio.get_running_loop()

    # ---- calls

    async def unary(self, method: str, request: bytes, timeout: float) -> bytes:
        """Return the answer. Raises CallFailed if there is none, TimeoutError if it does not come in time."""
        answers: list[bytes] = []
        async with asyncio.timeout(timeout):
            await self._begin(method, request, answers.append, timeout).done
        if not answers:
            raise CallFailed(f"{method} was refused")
        return answers[0]

    def stream(self, method: str, request: bytes, on_message: Callable[[bytes], None]) -> "asyncio.Future[None]":
        """Begin a call that passes its messages to `on_message` until the returned future is done."""
        return self._begin(method, request, on_message, 0.0).done

    def conversation(self, method: str, request: bytes, on_message: Callable[[bytes], None]) -> Call:
        """Begin a call of many requests with the first one, `request`; `more` sends another."""
        return self._begin(method, request, on_message, 0.0, ends=False)

    def more(self, call: Call, request: bytes) -> None:
        self._transport.write(_frame(DATA, 0, call.number, self._body(request)))

    def _body(self, request: bytes) -> bytes:
        body = b"\0" + len(request).to_bytes(4) + request
        self._window -= len(body)
        if self._window < 0 or len(body) > WINDOW_DEFAULT:
            raise CallFailed(f"{len(body)} bytes do not fit the server's window; send less at once")
        return body

    def _begin(self, method: str, request: bytes, on_message: Callable[[bytes], None], timeout: float, ends: bool = True) -> Call:
        number, self._next = self._next, self._next + 2
        headers = self._headers.get((method, timeout))
        if headers is None:
            deadline = (("grpc-timeout", f"{int(timeout)}S"),) if timeout else ()
            headers = _literals((":path", f"/frostline.v1.Control/{method}")) + self._common + _literals(*deadline)
            self._headers[method, timeout] = headers
        body = self._body(request)
        call = self._calls[number] = Call(number, on_message, self._loop.create_future())
        flags = END_STREAM if ends else 0
        self._transport.write(_frame(HEADERS, END_HEADERS, number, headers) + _frame(DATA, flags, number, body))
        return call

    # ---- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = struct.pack(">HIHI", TABLE_SIZE, 0, INITIAL_WINDOW, WINDOW_MAX)
        more = (WINDOW_MAX - WINDOW_DEFAULT).to_bytes(4)
        transport.write(PREFACE + _frame(SETTINGS, 0, 0, settings) + _frame(WINDOW_UPDATE, 0, 0, more))
        self._loop.call_later(KEEPALIVE_SECONDS, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= 9:
            end = start + 9 + int.from_bytes(received[start : start + 3])
            if len(received) < end:
                break
            kind, flags, number = received[start + 3], received[start + 4], int.from_bytes(received[start + 5 : start + 9])
            self._take(kind, flags, number, bytes(received[start + 9 : end]))
            start = end
        del received[:start]

    def connection_lost(self, error: Exception | None) -> None:
        for call in self._calls.values():
            if not call.done.done():
                call.done.set_exception(CallFailed(f"the connection was lost: {error}"))

    def close(self) -> None:
        self._transport.close()

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        call = self._calls.get(number)
        if kind == DATA and call is not None:
            call.take(payload)
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._transport.write(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and number == 0:
            self._window += int.from_bytes(payload)
        if kind in (DATA, HEADERS) and not flags & END_STREAM:
            return
        if call is not None and kind in (DATA, HEADERS, RST_STREAM):
            del self._calls[number]
            if not call.done.done():
                call.done.set_result(None)

    def _keep_alive(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_frame(PING, 0, 0, bytes(8)))
            self._loop.call_later(KEEPALIVE_SECONDS, self._keep_alive)


async def open_connection(address: str, token: str) -> Connection:
    """Open a connection to host:port that sends `token` with every call. Raises OSError if no server listens there."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(address, token), host, int(port))
    return connection


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + number.to_bytes(4) + payload


def _literals(*headers: tuple[str, str]) -> bytes:
    """Encode headers in HPACK without its table: each name and value in full."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest, length = len(raw) - 127, b"\x7f"
    while rest >= 128:
        length, rest = length + bytes((rest % 128 + 128,)), rest // 128
    return length + bytes((rest,)) + raw
