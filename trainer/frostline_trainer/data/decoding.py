"""Processes that decode images for a worker (decoder.py): beside each other, in the order and with the bits of one.

An image is decoded for itself, so who decodes it changes nothing. A process that dies is replaced, and its image asked for again;
an image by which several have died in a row is no readable image.
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
    """So many processes, started when the first image is asked for. Any thread may ask."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="decoding")
        self._idle: SimpleQueue[_Decoder] = SimpleQueue()
        for _ in range(count):
            self._idle.put(_Decoder())

    def pixels(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        """float32 [channels, size, size] of each, in order. Raises ValueError for what is no readable image."""
        return [as_pixels(decoded) for decoded in self._threads.map(self._decode, wanted)]

    def close(self) -> None:
        """End the processes; nothing may be asked for any more."""
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
    """One process, started when it is asked."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, wanted: Wanted) -> np.ndarray:
        """Raises ValueError for an image that is none, OSError or EOFError where the process is gone."""
        if self.process is None:
            words = [sys.executable, "-m", "frostline_trainer.data.decoder"]
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
            except OSError as left:  # what could not be written to it any more
                log.debug("a decoder's pipe: %s", left)
        process.wait(END_SECONDS)


def _exactly(answers: BinaryIO, count: int) -> bytes:
    found = answers.read(count)
    if len(found) < count:
        raise EOFError(f"{len(found)} of {count} bytes came")
    return found


def decoders_of(job: Job, on_cpu: bool) -> int:
    """How many processes decode for one worker; 0: the worker itself does.

    By default none where the model computes on the same processors; on a device a worker's share of the machine's, less one.
    """
    if job.data.decoding_processes is not None:
        return job.data.decoding_processes
    if on_cpu:
        return 0
    share = len(os.sched_getaffinity(0)) // job.placement.workers_per_pod
    return max(1, min(PROCESSES_MAX, share - 1))
