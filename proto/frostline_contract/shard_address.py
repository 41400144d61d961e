"""host:port of a Redis server, as job files and command lines write it."""


def parse_shard_address(text: str) -> tuple[str, int]:
    """(host, port). Raises ValueError."""
    host, _, port = text.strip().rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not host or any(letter.isspace() for letter in host) or not 0 < number < 65536:
        raise ValueError(f"shard {text!r} is not host:port with a port of 1 to 65535")
    return host, number
