"""Writing to standard output and standard error that may be gone: a closed pipe, a full disk, a session that is over."""

import contextlib
import os
import sys
from typing import IO


def silence(stream: IO[str] | None) -> None:
    """Discard all further output to `stream`, also that of the interpreter's end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


def complain(text: str) -> None:
    """Print one message on standard error, if that can be written."""
    try:
        print(f"frostline: {text}", file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)
