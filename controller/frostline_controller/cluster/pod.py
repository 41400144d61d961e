"""One pod of the local cluster: an agent process under a stable name, restarted when it fails, ended with grace."""

import logging
import subprocess
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from signal import SIGTERM

from frostline_contract.durable_files import replace_durably
from frostline_contract.exit_codes import REFUSED, USER_MISTAKE
from frostline_controller.cluster.backend import FAILED, PENDING, RUNNING, SUCCEEDED, PodInfo
from frostline_controller.cluster.child import kill_group, python_module, signal_child, start_child, strike_group

log = logging.getLogger(__name__)

RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX = 0.2, 10.0
RESTART_SECONDS_AFTER_SUCCESS = 3.0
"""A pod that ended well is started again too (restartPolicy Always), unless it is scaled away meanwhile: so a run ends."""
HEALTHY_SECONDS = 30.0
"""An agent that lived this long starts its back-off anew."""
RESTARTS_MAX = 6


class Pod:
    """The kubelet's view of one pod. All calls come from the cluster's one thread."""

    def __init__(self, name: str, node: str, env: dict[str, str], logs: Path, cuts: Path, folder: Path) -> None:
        """folder: what its processes work in. cuts: folder of the files that say which pods are cut off from the services, by
        uid, and until when."""
        self.name, self.node, self.uid = name, node, str(uuid.uuid4())
        self._cut, self._folder = cuts / self.uid, folder
        self._env = {
            **env,
            "FROSTLINE_POD_NAME": name,
            "FROSTLINE_POD_UID": self.uid,
            "FROSTLINE_NODE": node,
            "FROSTLINE_CUT": str(self._cut),
        }
        self.log = logs / f"{name}.log"
        self._env["FROSTLINE_LOG"] = str(self.log)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._started = 0.0
        self._next_start = time.monotonic()
        self._restarts = 0
        self._kill_at: float | None = None
        self.phase = PENDING
        self.exit_code: int | None = None

    def info(self) -> dict[str, object]:
        """As the status shows it."""
        ready = self.phase == RUNNING and self._kill_at is None
        return asdict(PodInfo(self.name, self.uid, self.node, self.phase, self._started_at, ready))

    @property
    def ordinal(self) -> int:
        return int(self.name.rpartition("-")[2])

    @property
    def process_id(self) -> int | None:
        """Of the agent; None while there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def crash_looping(self) -> bool:
        return self._restarts >= RESTARTS_MAX

    @property
    def failed(self) -> bool:
        """It does not stay up by itself: a mistake, a refusal, or ends one after the other."""
        return self.phase == FAILED and bool(self.exit_code)

    def advance(self, keep_trying: bool = False) -> None:
        """Start what should run, note what has ended, kill what has had its grace. keep_trying: start what has failed, too."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._note_end(self._process.returncode, now)
        if self._kill_at is not None:
            if self._process is not None and now >= self._kill_at:
                log.warning("pod killed after its grace pod=%s", self.name)
                kill_group(self._process)
                self._note_end(self._process.returncode, now)
            return
        due = self.phase in (PENDING, SUCCEEDED) or (keep_trying and self.phase == FAILED)
        if self._process is None and due and now >= self._next_start:
            self._process = start_child([*python_module("frostline_trainer.agent")], self._env, self.log, self._folder)
            self._started, self._started_at = now, time.time()
            self.phase = RUNNING
            log.info("pod started pod=%s uid=%s process=%s", self.name, self.uid, self._process.pid)

    def delete(self, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL after the grace (at once where it is 0)."""
        if self._kill_at is not None and grace_seconds > 0:
            return
        self._kill_at = time.monotonic() + grace_seconds
        if self._process is not None:
            signal_child(self._process, SIGTERM) if grace_seconds > 0 else kill_group(self._process)

    def strike(self) -> None:
        """SIGKILL to everything in it; `delete` is still to be called."""
        if self._process is not None:
            strike_group(self._process)

    def cut_off(self, seconds: float) -> None:
        """From now on no control message of its workers passes, for so long. Its processes know nothing of it."""
        self._cut.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self._cut, str(time.time() + seconds))

    def outlives(self) -> bool:
        """Of a pod that nobody looks after any more: whether anything of it still runs."""
        if self._process is not None and self._process.poll() is not None:
            kill_group(self._process)
            self._process = None
        return self._process is not None

    @property
    def gone(self) -> bool:
        """It was deleted and nothing of it runs any more."""
        return self._kill_at is not None and self._process is None

    def _note_end(self, code: int, now: float) -> None:
        assert self._process is not None
        kill_group(self._process)  # what the agent may have left behind
        self._process, self.exit_code = None, code
        if self._kill_at is not None:
            self.phase = SUCCEEDED if code == 0 else FAILED
            return
        if code == 0:
            self.phase, self._next_start = SUCCEEDED, now + RESTART_SECONDS_AFTER_SUCCESS
            log.info("pod ended pod=%s code=%s", self.name, code)
            return
        self._restarts = 0 if now - self._started > HEALTHY_SECONDS else self._restarts + 1
        wait = min(RESTART_SECONDS_MAX, RESTART_SECONDS_FIRST * 2 ** max(0, self._restarts - 1))
        stays_down = self.crash_looping or code in (USER_MISTAKE, REFUSED)
        self._next_start, self.phase = now + wait, FAILED if stays_down else PENDING
        log.warning("agent ended pod=%s code=%s restart_in=%.1f", self.name, code, wait)
