"""Stack dumps of all threads, which a worker sends on request when it seems to hang (docs/protocols.md 7.3)."""

import sys
import threading
import traceback

from frostline_proto.v1 import control_pb2

STACK_BYTES_MAX = 16_000
FRAMES_MAX = 40
"""Limit of innermost frames shown of one thread."""


def record(reason: str) -> str:
    """The stacks of all threads, the main (training) thread's first, in at most STACK_BYTES_MAX bytes of UTF-8.

    Callable from any thread, also while the training thread is blocked in user code, in a lock or in a collective.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, item[0]))
    texts = [reason]
    for ident, frame in frames:
        if ident == threading.get_ident():
            continue
        lines = traceback.format_list(traceback.extract_stack(frame)[-FRAMES_MAX:])
        texts.append(f"thread {names.get(ident, 'unknown')} ({ident}), innermost last:\n" + "".join(lines).rstrip())
    return _bounded("\n\n".join(texts))


def stack_event(worker_id: str, step: int, lineage: int, reason: str) -> control_pb2.RunEvent:
    """The event that answers a StackNotice. The controller adds it to its verdict on the hang."""
    detail = {"worker": worker_id, "stack": record(reason)}
    return control_pb2.RunEvent(kind="hang", step=step, lineage=lineage, reason=reason, detail=detail)


def _bounded(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= STACK_BYTES_MAX:
        return text
    mark = f"\n... cut at {STACK_BYTES_MAX} bytes"
    return encoded[: STACK_BYTES_MAX - len(mark)].decode(errors="ignore") + mark
