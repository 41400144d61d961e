"""A pod's agent at SIGTERM."""

import os
import signal
import subprocess
import sys

from frostline_trainer.process.agent import Agent, Slot


def test_a_worker_that_has_just_ended_by_itself_keeps_no_other_from_its_signal() -> None:
    """The agent hears of the end from the preload process, a moment later."""
    agent = Agent({**os.environ, "FROSTLINE_WORKERS_PER_POD": "2", "FROSTLINE_PRELOAD": "unused"})
    ended, going_on = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2))
    ended.kill()
    ended.wait()
    agent._slots = [Slot(number, process_id=process.pid) for number, process in enumerate((ended, going_on))]
    agent._on_term(signal.SIGTERM, None)
    agent._forward_term()
    assert going_on.wait(30) == -signal.SIGTERM
