"""Resolves host names with a timeout; the system's resolver blocks for as long as its servers are silent."""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress


def resolve(host: str, port: int, seconds: float) -> list[str]:
    """Numeric addresses of `host`, in the resolver's order. Raises OSError if there are none, or none within `seconds`."""
    with suppress(socket.gaierror):  # raised if `host` is a name
        return _ask(host, port, socket.AI_NUMERICHOST)
    answers: list[list[str] | OSError] = []

    def ask() -> None:
        try:
            answers.append(_ask(host, port, 0))
        except (OSError, UnicodeError) as error:
            answers.append(error if isinstance(error, OSError) else OSError(str(error)))

    asking = threading.Thread(target=ask, name=f"resolve-{host[:40]}", daemon=True)
    asking.start()
    asking.join(seconds)
    if not answers:
        raise TimeoutError(f"the name was not resolved within {seconds:g} s")
    (answer,) = answers
    if isinstance(answer, OSError):
        raise answer
    return answer


def _ask(host: str, port: int, flags: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def connected(addresses: Sequence[str], port: int, seconds: float) -> socket.socket:
    """A connection to the first address that accepts one. Raises OSError if none does."""
    *others, last = addresses
    for address in others:
        with suppress(OSError):
            return socket.create_connection((address, port), timeout=seconds)
    return socket.create_connection((last, port), timeout=seconds)
