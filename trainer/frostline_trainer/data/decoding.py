"""A pool of processes that decode images for a worker in parallel (decoder.py), with the same order and bits as one process.

Images are decoded independently, so it does not matter which process decodes one. A process that dies is replaced, and its image
is requested again. An image at which several processes in a row have died counts as unreadable.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import BinaryIO

import numpy as np

from frostline_contract.job import Job
from frostline_trainer.data.decoder import BYTES_MAX, HEAD, REASON, Wanted, as_pixels, request_of, unreadable

log = logging.getLogger(__name__)
ATTEMPTS = 3
PROCESSES_MAX = 8
END_SECONDS = 5.0


class Decoders:
    """The pool, started with the first request. Any thread may use it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="decoding")
        self._idle: SimpleQueue[_Decoder] = SimpleQueue()
        for _ in range(count):
            self._idle.put(_Decoder())

    def pixels(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        """float32 [channels, size, size] of each image, in order. Raises ValueError for an unreadable image."""
        return [as_pixels(decoded) for decoded in self._threads.map(self._decode, wanted)]

    def close(self) -> None:
        """End the processes; no request is allowed afterwards."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().end()

    def _decode(self, wanted: Wanted) -> np.ndarray:
        decoder = self._idle.get()
        try:
            for _ in range(ATTEMPTS):
                try:
                    return decoder.ask(wanted)
                except (OSError, EOFError) as death:
                    log.warning("a decoder died over %s (%s); another one takes its place", wanted.file, death)
                    decoder.end()
        finally:
            self._idle.put(decoder)
        raise unreadable(wanted.file, f"{ATTEMPTS} decoders died over it")


class _Decoder:
    """One process, started with its first request."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, wanted: Wanted) -> np.ndarray:
        """The pixels of one image. Raises ValueError for an unreadable image, OSError or EOFError if the process is gone."""
        if self.process is None:
            words = [sys.executable, "-P", "-m", "frostline_trainer.data.decoder"]
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None and answers is not None
        requests.write(request_of(wanted))
        requests.flush()
        kind, size = HEAD.unpack(_exactly(answers, HEAD.size))
        if size > BYTES_MAX:
            raise OSError(f"it answers with {size} bytes")
        payload = _exactly(answers, size)
        if kind == REASON:
            raise ValueError(payload.decode())
        return np.frombuffer(payload, dtype=np.uint8).reshape(wanted.shape)

    def end(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError as left:  # bytes that could not be written any more
                log.debug("a decoder's pipe: %s", left)
        process.wait(END_SECONDS)


def _exactly(answers: BinaryIO, count: int) -> bytes:
    found = answers.read(count)
    if len(found) < count:
        raise EOFError(f"{len(found)} of {count} bytes came")
    return found


def decoders_of(job: Job, on_cpu: bool) -> int:
    """Number of processes that decode for one worker; 0: the worker decodes itself.

    Default: 0 if the model computes on the CPU; with a GPU, the worker's share of the machine's processors, less one.
    """
    if job.data.decoding_processes is not None:
        return job.data.decoding_processes
    if on_cpu:
        return 0
    share = len(os.sched_getaffinity(0)) // job.placement.workers_per_pod
    return max(1, min(PROCESSES_MAX, share - 1))
