"""Follows calls in every Python process of a traced run: Python imports this module by itself where its folder is on PYTHONPATH.

FROSTLINE_WALKS names a folder with acts.json ({"<file>:<qualified name>": whether what it calls counts}). There each process
writes <process id>.jsonl: [act, file, whether it was on the stack when the act began] for each file of ours that was,
and for each that is entered while it runs, once. A line is written at once, so a killed process leaves its own.
"""

import json
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

PLUGGED_IN = "frostline_trainer/faults/"
"""What the run plugs in to lose a worker: no part of any walk, since production imports none of it."""
ASIDE = "frostline_trainer/step/evaluation.py"
"""Scores: they go the way of steps' activations from another start, and are no part of any walk."""
OURS = ("frostline_contract/", "frostline_rpc/", "frostline_controller/", "frostline_trainer/", "frostline_cache_server/")


class Recorder:
    """What `sys.setprofile` calls in every thread."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with open(os.path.join(folder, "acts.json"), encoding="utf-8") as file:
            self._acts: dict[str, bool] = json.load(file)
        self._codes: dict[CodeType, tuple[str, str]] = {}
        self._threads = threading.local()
        self._seen: set[tuple[int, str, str, bool]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            file, act = self._place(frame.f_code)
            if not file:
                return
            running = self._running()
            if act and not self._is_aside(frame):
                running.append((frame, act))
                self._note_stack(act, frame)
            for _, other in running:
                if self._acts[other]:
                    self._note(other, file, on_stack=False)
        elif event == "return":
            running = self._running()
            if running and running[-1][0] is frame:
                running.pop()

    def _is_aside(self, frame: FrameType | None) -> bool:
        """Whether a score is on the stack."""
        while frame is not None and self._place(frame.f_code)[0] != ASIDE:
            frame = frame.f_back
        return frame is not None

    def _running(self) -> list[tuple[FrameType, str]]:
        """The acts on this thread's stack."""
        if not hasattr(self._threads, "running"):
            self._threads.running = []
        return self._threads.running

    def _place(self, code: CodeType) -> tuple[str, str]:
        """The file that a function of ours stands in, and the act that it is; both empty for others', and for imports."""
        known = self._codes.get(code)
        if known is None:
            name = code.co_filename.replace(os.sep, "/")
            start = max((name.rfind(f"/{package}") for package in OURS), default=-1)
            file = name[start + 1 :] if start >= 0 and code.co_name != "<module>" else ""
            file = "" if file.startswith(PLUGGED_IN) else file
            act = f"{file}:{code.co_qualname}"
            known = self._codes[code] = (file, act if act in self._acts else "")
        return known

    def _note_stack(self, act: str, frame: FrameType | None) -> None:
        while frame is not None:
            file, _ = self._place(frame.f_code)
            if file:
                self._note(act, file, on_stack=True)
            frame = frame.f_back

    def _note(self, act: str, file: str, on_stack: bool) -> None:
        key = (os.getpid(), act, file, on_stack)
        if key in self._seen:
            return
        self._seen.add(key)
        handle = os.open(os.path.join(self._folder, f"{key[0]}.jsonl"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(handle, (json.dumps([act, file, on_stack]) + "\n").encode())
        os.close(handle)


if os.environ.get("FROSTLINE_WALKS"):
    recorder = Recorder(os.environ["FROSTLINE_WALKS"])
    threading.setprofile(recorder)
    sys.setprofile(recorder)
