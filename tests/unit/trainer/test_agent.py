"""A pod's agent at SIGTERM, and whom it calls joined."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from frostline_contract.exit_codes import CRASH_LOOP, DONE
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


def test_a_worker_that_has_ended_for_good_keeps_its_pod_from_being_started_no_longer(tmp_path: Path) -> None:
    """Or the kubelet would kill the pod, with the workers that train, at the end of each start's time."""
    agent = Agent({**os.environ, "FROSTLINE_WORKERS_PER_POD": "3", "FROSTLINE_PRELOAD": "unused"})
    files = [tmp_path / f"joined-{number}" for number in range(3)]
    agent._slots = [Slot(number, joined=file) for number, file in enumerate(files)]
    for file in files[1:]:
        file.touch()
    assert agent._not_joined() == [0], "it still starts, or is started again"
    agent._slots[0].exit_code, agent._slots[0].joined = CRASH_LOOP, None
    assert agent._not_joined() == []
    files[2].unlink()
    assert agent._not_joined() == [2]
    for slot in agent._slots:
        slot.exit_code, slot.joined = slot.exit_code or DONE, None
    assert agent._not_joined() == [0, 1, 2], "nobody is left who could be ready"
