"""SIGTERM to a worker process, in each part of its life: it leaves, or ends where it has nothing to leave."""

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time
from frostline_trainer.process import worker

def ask_for_job(identity):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # as a channel's threads, or threads that compute
    if "asks" in sys.argv:
        print("now", flush=True)
        time.sleep(60)
    return None, ()

class Worker:
    client = None

    def __init__(self, identity, job, profiles):
        self.left = threading.Event()

    def run(self):
        print("now", flush=True)
        return 7 if self.left.wait(60) else 8

    def leave(self, reason):
        self.left.set()

worker.ask_for_job, worker.Worker = ask_for_job, Worker
sys.exit(worker.main())
"""
ENV = {
    "FROSTLINE_RUN_DIR": "/nowhere", "FROSTLINE_CONTROLLER": "127.0.0.1:1", "FROSTLINE_TOKEN": "any",
    "FROSTLINE_POD_NAME": "p-0", "FROSTLINE_POD_UID": "uid", "FROSTLINE_NODE": "node", "FROSTLINE_HOST": "127.0.0.1",
    "FROSTLINE_WORKER_NONCE": "1",
}  # fmt: skip


@pytest.mark.parametrize(("part", "code"), [("asks", 0), ("runs", 7)])
def test_a_worker_that_is_ended_leaves_whatever_threads_it_has(part: str, code: int) -> None:
    command = [sys.executable, "-c", SCRIPT, part]
    with subprocess.Popen(command, env={**os.environ, **ENV}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == code
