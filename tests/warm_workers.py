"""Worker processes that stay warm over a test session: torch is imported once, in the process from which they are forked.

Python's fork server imports the heavy packages; it has one thread and no sockets, so that its forks are safe whatever the test
process has open. A worker runs one named function at a time and answers with plain data.
"""

import importlib
import os
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

PRELOADED = [
    "torch",
    "torch.distributed",
    "transformers",
    "safetensors.torch",
    "frostline_trainer.process.setup",
    "frostline_trainer.checkpoints.saving",
]
CALL_SECONDS = 300.0
"""Only a hang lasts this long, on however busy a machine."""

DIED = "died with exit status"


class WorkerError(AssertionError):
    """A worker failed or died; the text holds its traceback or exit status."""


@dataclass
class Call:
    """A call of a worker. function: "module:name". arguments: its keyword arguments, plain data."""

    function: str
    arguments: dict[str, Any]


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection


class WarmWorkers:
    """A pool that grows to the largest number of workers of any call; a worker that fails or dies is replaced."""

    def __init__(self) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._workers: list[_Worker | None] = []

    def call(self, calls: Sequence[Call], seconds: float = CALL_SECONDS, may_die: Collection[int] = ()) -> list[Any]:
        """Run calls[i] on worker i, all at once. Returns the answers in order, None for a worker that died and may die.

        Raises WorkerError with the first failure's text; every worker that has not answered by then is killed, since it may wait
        for the failed one.
        """
        workers = [self._worker(index) for index in range(len(calls))]
        for worker, call in zip(workers, calls, strict=True):
            worker.pipe.send((call.function, call.arguments))
        answers: dict[int, Any] = {}
        open_pipes: dict[Any, int] = {worker.pipe: index for index, worker in enumerate(workers)}
        failure = ""
        while open_pipes and not failure:
            ready = wait(list(open_pipes), seconds)
            failure = "" if ready else f"workers {sorted(open_pipes.values())} did not answer within {seconds} s"
            for pipe in ready:
                index = open_pipes.pop(pipe)
                error, answers[index] = _receive(workers[index])
                if error.startswith(DIED) and index in may_die:
                    self._discard(index)
                    continue
                failure = failure or (f"worker {index}: {error}" if error else "")
                if error:
                    self._discard(index)
        for index in open_pipes.values():
            self._discard(index)
        if failure:
            raise WorkerError(failure)
        return [answers[index] for index in range(len(calls))]

    def process_ids(self) -> list[int]:
        """Return the process ids of the living workers."""
        return [worker.process.pid for worker in self._workers if worker is not None and worker.process.pid is not None]

    def close(self) -> None:
        """End every worker and wait until it is gone."""
        for index in range(len(self._workers)):
            self._discard(index)

    def _worker(self, index: int) -> _Worker:
        while len(self._workers) <= index:
            self._workers.append(None)
        worker = self._workers[index]
        if worker is not None and worker.process.is_alive():
            return worker
        self._discard(index)
        near, far = self._context.Pipe()
        process = self._context.Process(target=serve, args=(far,), name=f"warm-{index}", daemon=True)
        process.start()
        far.close()
        self._workers[index] = _Worker(process, near)
        return self._workers[index]

    def _discard(self, index: int) -> None:
        worker, self._workers[index] = self._workers[index], None
        if worker is not None:
            worker.pipe.close()
            worker.process.kill()
            worker.process.join(10)


def _receive(worker: _Worker) -> tuple[str, Any]:
    """Return a worker's (error, answer); one of them is empty."""
    try:
        return worker.pipe.recv()
    except (EOFError, ConnectionError):
        worker.process.join(10)
        return f"{DIED} {worker.process.exitcode}", None


def serve(pipe: Connection) -> None:
    """Run the functions that the pipe requests until it is closed: the main loop of a worker."""
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, ConnectionError):
            # The test process is gone. Threads of a store or of gloo must not keep this process.
            os._exit(0)
        module, _, name = function.partition(":")
        try:
            answer = ("", getattr(importlib.import_module(module), name)(**arguments))
        except Exception:
            answer = (traceback.format_exc(), None)
        pipe.send(answer)
