"""Addresses and tokens that may change while a process runs. They are given as text, or as the path of a file with the current
text."""

from pathlib import Path


def current_text(given: str) -> str:
    """The text that was given, or the content of the file that it names. Raises OSError.

    A text with a "/" is a path: neither host:port nor a token (Frostline's or a cluster's, both base64url) contains one.
    """
    return Path(given).read_text(encoding="utf-8").strip() if "/" in given else given
