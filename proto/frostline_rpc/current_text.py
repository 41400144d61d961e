"""Addresses and tokens that may change while a process lives: given as themselves, or as the path of a file that holds them
now."""

from pathlib import Path


def current_text(given: str) -> str:
    """What was given, or the content of the file that it names: whatever has a "/" is a path. Raises OSError.

    Neither host:port nor a token of ours or of a cluster (base64url) has one.
    """
    return Path(given).read_text(encoding="utf-8").strip() if "/" in given else given
