"""One pod of the local cluster: an agent process under a stable name, restarted when it fails, ended with a grace period."""

import logging
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from signal import SIGTERM

from frostline_contract.backoff import Backoff
from frostline_contract.durable_files import replace_durably
from frostline_contract.exit_codes import REFUSED, USER_MISTAKE
from frostline_controller.cluster.backend import FAILED, PENDING, RUNNING, SUCCEEDED, PodInfo
from frostline_controller.cluster.local.child import python_module
from frostline_controller.cluster.local.supervised import SupervisedChild

log = logging.getLogger(__name__)

RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX = 0.2, 10.0
RESTART_SECONDS_AFTER_SUCCESS = 3.0
"""Seconds until a pod that ended well is started again (restartPolicy Always), unless it is scaled away meanwhile, as at a run's
end."""
RESTARTS_MAX = 6


class Pod:
    """A pod as the kubelet sees it. All calls come from the cluster's one thread."""

    def __init__(self, name: str, node: str, env: dict[str, str], logs: Path, cuts: Path, folder: Path) -> None:
        """Make a pod of this machine; no process is started yet.

        Args:
            folder: working directory of the pod's processes.
            cuts: folder with one file per pod that is cut off from the services, named by uid, with the end of the cut.
        """
        self.name, self.node, self.uid = name, node, str(uuid.uuid4())
        self._cut = cuts / self.uid
        self.log = logs / f"{name}.log"
        env = {
            **env,
            "FROSTLINE_POD_NAME": name,
            "FROSTLINE_POD_UID": self.uid,
            "FROSTLINE_NODE": node,
            "FROSTLINE_CUT": str(self._cut),
            "FROSTLINE_LOG": str(self.log),
        }
        self._agent = SupervisedChild(env, self.log, folder, Backoff(RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX))
        self._started_at = 0.0
        self._kill_at: float | None = None
        self.phase = PENDING
        self.exit_code: int | None = None

    def info(self) -> dict[str, object]:
        """Return the pod as the status shows it."""
        ready = self.phase == RUNNING and self._kill_at is None
        return asdict(PodInfo(self.name, self.uid, self.node, self.phase, self._started_at, ready))

    @property
    def ordinal(self) -> int:
        """The pod's number, the last part of its name."""
        return int(self.name.rpartition("-")[2])

    @property
    def process_id(self) -> int | None:
        """The process id of the agent; None while it does not run."""
        return self._agent.process_id

    @property
    def crash_looping(self) -> bool:
        """Whether the agent has ended too soon RESTARTS_MAX times in a row."""
        return self._agent.backoff.failures >= RESTARTS_MAX

    @property
    def failed(self) -> bool:
        """Whether the pod does not stay up by itself: after a mistake, a refusal, or repeated early ends."""
        return self.phase == FAILED and bool(self.exit_code)

    def advance(self, keep_trying: bool = False) -> None:
        """Start the agent where it is due, record its end, kill it after its grace period.

        Args:
            keep_trying: whether an agent that has failed is started again.
        """
        code = self._agent.take_end()
        if code is not None:
            self._note_end(code)
        if self._kill_at is not None:
            if self._agent.present and time.monotonic() >= self._kill_at:
                log.warning("pod killed after its grace pod=%s", self.name)
                self._note_end(self._agent.end())
            return
        due = self.phase in (PENDING, SUCCEEDED) or (keep_trying and self.phase == FAILED)
        if due and self._agent.start_if_due([*python_module("frostline_trainer.process.agent")]):
            self.phase, self._started_at = RUNNING, time.time()
            log.info("pod started pod=%s uid=%s process=%s", self.name, self.uid, self._agent.process_id)

    def delete(self, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period (at once where it is 0)."""
        if self._kill_at is not None and grace_seconds > 0:
            return
        self._kill_at = time.monotonic() + grace_seconds
        if grace_seconds > 0:
            self._agent.signal(SIGTERM)
        else:
            self._agent.kill()

    def strike(self) -> None:
        """Send SIGKILL to all of the pod's processes; `delete` is still to be called."""
        self._agent.strike()

    def cut_off(self, seconds: float) -> None:
        """Block all control messages of the pod's workers for `seconds`. The pod's processes are not informed."""
        self._cut.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self._cut, str(time.time() + seconds))

    def outlives(self) -> bool:
        """Whether anything still runs of a pod that is no longer managed."""
        self._agent.take_end()
        return self._agent.present

    @property
    def gone(self) -> bool:
        """Whether the pod was deleted and none of its processes runs any more."""
        return self._kill_at is not None and not self._agent.present

    def _note_end(self, code: int) -> None:
        self.exit_code = code
        if self._kill_at is not None:
            self.phase = SUCCEEDED if code == 0 else FAILED
            return
        if code == 0:
            self.phase = SUCCEEDED
            self._agent.wait(RESTART_SECONDS_AFTER_SUCCESS)
            log.info("pod ended pod=%s code=%s", self.name, code)
            return
        wait = self._agent.wait_after_failure()
        self.phase = FAILED if self.crash_looping or code in (USER_MISTAKE, REFUSED) else PENDING
        log.warning("agent ended pod=%s code=%s restart_in=%.1f", self.name, code, wait)
