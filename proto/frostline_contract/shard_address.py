"""Addresses of Redis servers, written host:port in job files and on command lines."""


def parse_shard_address(text: str) -> tuple[str, int]:
    """The (host, port) of an address. Raises ValueError where the text is no address."""
    host, _, port = text.strip().rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not host or any(letter.isspace() for letter in host) or not 0 < number < 65536:
        raise ValueError(f"shard {text!r} is not host:port with a port of 1 to 65535")
    return host, number
