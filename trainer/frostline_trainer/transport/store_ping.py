"""Whether a store serves, asked by its own protocol: the library's client waits without end for one that is silent."""

import socket
import struct

ANSWER_SECONDS = 2.0
_NONCE = struct.pack("=I", 0x46524F53)
_GREETING, _PING = struct.pack("=BI", 0, 0x3C85F7CE), b"\x0d" + _NONCE
"""c10d's queries VALIDATE and PING (TCPStoreBackend.hpp), the same since torch 2.2; a server repeats the nonce."""


def answers(host: str, port: int, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether the store there serves a new client, within `seconds` for each of connecting and answering."""
    try:
        with socket.create_connection((host, port), seconds) as connection:
            connection.sendall(_GREETING + _PING)
            return connection.recv(len(_NONCE), socket.MSG_WAITALL) == _NONCE
    except OSError:
        return False
