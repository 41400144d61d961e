"""The agent: PID 1 of a pod. It starts one worker a GPU, restarts crashed ones, and passes SIGTERM on. It imports no torch.

    python -m frostline_trainer.process.agent

Each worker sees only its own GPU (CUDA_VISIBLE_DEVICES, gpus.py). If the agent cannot assign GPUs, it starts the workers with the
reason in FROSTLINE_DEVICE_MISTAKE: they report it to the controller, to which the agent has no connection, and end.

Environment: FROSTLINE_WORKERS_PER_POD (1), FROSTLINE_DEVICE (the job's training.device; auto), FROSTLINE_PRELOAD (socket of a
preload process; unset: the agent starts its own), FROSTLINE_LOG (file of the workers' output; unset: the agent's own),
FROSTLINE_GRACE_SECONDS (from SIGTERM to SIGKILL), FROSTLINE_HEALTH_PORT (HTTP port for probes, on FROSTLINE_BIND_HOST; unset:
none), and what workers read.

Exit codes of a worker: 0 done, 2 the user's mistake, 3 refused by the controller. Such a worker is not restarted, except once
after a refusal, since the controller may have refused the process (of a generation that is over) and not the pod. Any other code
is a crash. The agent ends when no worker is left, with 0, 2 or 3 like its workers, or with 1 if one crashed repeatedly. It also
ends with 1 if its own preload process has ended, which no worker survives: the kubelet starts the container again, and counts.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from frostline_contract.backoff import HEALTHY_SECONDS, Backoff
from frostline_contract.exit_codes import CRASH_LOOP, DONE, FINAL, REFUSED, USER_MISTAKE
from frostline_contract.scratch_folder import ScratchFolder
from frostline_contract.worker_id import make_nonce, ordinal_of
from frostline_trainer.process.gpus import VISIBLE, NoDevice, assign_gpus

if TYPE_CHECKING:
    from http.server import HTTPServer

RESPAWN_SECONDS_FIRST, RESPAWN_SECONDS_MAX = 0.1, 10.0
CRASHES_MAX = 8
CONNECT_SECONDS = 0.1


@dataclass
class Slot:
    """The place of one worker in the pod.

    Attributes:
        connection: to the preload process, open while the worker lives.
        process_id: the worker's; 0: there is none.
        joined: the file that the worker creates when it has joined the run.
    """

    local_rank: int
    connection: socket.socket | None = None
    received: bytes = b""
    process_id: int = 0
    started: float = 0.0
    next_start: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(RESPAWN_SECONDS_FIRST, RESPAWN_SECONDS_MAX))
    refused: bool = False
    exit_code: int | None = None
    joined: Path | None = None


class Agent:
    """The agent, single-threaded: a selector over the workers' connections, woken by SIGTERM."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._log = env.get("FROSTLINE_LOG") or f"/proc/{os.getpid()}/fd/1"
        self._grace_seconds = float(env.get("FROSTLINE_GRACE_SECONDS", "14"))
        self._slots = [Slot(local_rank) for local_rank in range(int(env.get("FROSTLINE_WORKERS_PER_POD", "1")))]
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._preload: subprocess.Popen[bytes] | None = None
        self._socket = env.get("FROSTLINE_PRELOAD", "")
        self._health_port = int(env.get("FROSTLINE_HEALTH_PORT", "0"))
        self._health: HTTPServer | None = None
        self._devices: list[dict[str, str]] = [{} for _ in self._slots]
        self._folder: ScratchFolder | None = None  # created if it is needed
        if not self._socket or self._health_port:
            self._folder = ScratchFolder()

    def run(self) -> int:
        """Start the workers and keep them running until all have ended for good, or SIGTERM. Returns the pod's exit status."""
        wake, wake_end = socket.socketpair()
        for end in (wake, wake_end):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_end.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_term)
        self._selector.register(wake, selectors.EVENT_READ)
        if not self._socket:
            self._start_preload()
        self._devices = self.assign_devices()
        try:
            self._serve_health()
            while any(slot.exit_code is None for slot in self._slots):
                self._start_due()
                for key, _ in self._selector.select(timeout=self._next_wait()):
                    if key.data is None:
                        wake.recv(4096)
                        self._forward_term()
                    else:
                        self._read(key.data)
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    say("grace is over, workers are killed")
                    break
                if self._has_lost_preload():
                    break
        finally:
            self._end()
        return self._code()

    def _code(self) -> int:
        codes = {slot.exit_code for slot in self._slots}
        if self._kill_at is not None:
            return DONE
        if None in codes:  # without a preload process
            return CRASH_LOOP
        return next((code for code in (CRASH_LOOP, USER_MISTAKE, REFUSED) if code in codes), DONE)

    def assign_devices(self) -> list[dict[str, str]]:
        """The environment variables of each worker's device, by local rank. Called once, so that no worker changes its device."""
        ordinal = ordinal_of(self._env.get("FROSTLINE_POD_NAME", ""))
        try:
            gpus = assign_gpus(self._env.get("FROSTLINE_DEVICE", "auto"), ordinal, len(self._slots), self._env)
        except NoDevice as mistake:
            say(f"no devices for the workers: {mistake}")
            return [{"FROSTLINE_DEVICE_MISTAKE": str(mistake)} for _ in self._slots]
        for local_rank, uuid in enumerate(gpus):
            say(f"device local_rank={local_rank} uuid={uuid}")
        return [{VISIBLE: uuid} for uuid in gpus] or self._devices

    def _on_term(self, number: int, frame: object) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_seconds

    def _forward_term(self) -> None:
        """Pass SIGTERM on: workers drain, and none is restarted."""
        if self._kill_at is None:
            return
        for slot in self._slots:
            if slot.process_id:
                _terminate(slot.process_id)
            elif slot.exit_code is None:
                slot.exit_code = DONE

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.exit_code is None and slot.connection is None and now >= slot.next_start and self._kill_at is None:
                self._start(slot, now)

    def _start(self, slot: Slot, now: float) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._socket)
        except OSError:  # the preload process is still importing, or is being started again
            connection.close()
            slot.next_start = now + CONNECT_SECONDS
            return
        nonce = make_nonce(slot.local_rank)
        env = {**self._env, **self._devices[slot.local_rank], "FROSTLINE_WORKER_NONCE": nonce}
        if self._folder is not None:
            slot.joined = self._folder.path / f"joined-{nonce}"
            env["FROSTLINE_JOINED"] = str(slot.joined)
        connection.sendall(json.dumps({"env": env, "log": self._log}).encode() + b"\n")
        slot.connection, slot.received, slot.started, slot.process_id = connection, b"", now, 0
        self._selector.register(connection, selectors.EVENT_READ, slot)

    def _read(self, slot: Slot) -> None:
        """Read the worker's process id, its exit code, or the end of the preload process, which ends the worker too."""
        assert slot.connection is not None
        try:
            data = slot.connection.recv(4096)
        except ConnectionError:
            data = b""
        slot.received += data
        while b"\n" in slot.received:
            line, _, slot.received = slot.received.partition(b"\n")
            message = json.loads(line)
            if "pid" in message:
                slot.process_id = message["pid"]
                say(f"worker started local_rank={slot.local_rank} process={slot.process_id}")
                if self._kill_at is not None:
                    _terminate(slot.process_id)
            else:
                self._ended(slot, message["exit"])
                return
        if not data:
            self._ended(slot, -int(signal.SIGKILL))

    def _ended(self, slot: Slot, code: int) -> None:
        assert slot.connection is not None
        self._selector.unregister(slot.connection)
        slot.connection.close()
        slot.connection, slot.process_id = None, 0
        if slot.joined is not None:
            slot.joined.unlink(missing_ok=True)
            slot.joined = None
        now = time.monotonic()
        if now - slot.started > HEALTHY_SECONDS:
            slot.refused = False
        if code == REFUSED and not slot.refused and self._kill_at is None:
            slot.refused, slot.next_start = True, now + RESPAWN_SECONDS_FIRST
            say(f"worker refused, one more try local_rank={slot.local_rank}")
            return
        if code in FINAL or self._kill_at is not None:
            slot.exit_code = code if code in FINAL else DONE
            say(f"worker ended local_rank={slot.local_rank} code={code}")
            return
        wait = slot.backoff.failed(now - slot.started)
        if slot.backoff.failures > CRASHES_MAX:
            slot.exit_code = CRASH_LOOP
            say(f"worker crashed {CRASHES_MAX} times in a row, given up local_rank={slot.local_rank} code={code}")
            return
        slot.next_start = now + wait
        say(f"worker crashed local_rank={slot.local_rank} code={code} again_in={wait:.1f}")

    def _next_wait(self) -> float | None:
        """Seconds until the next start or kill is due; None: none is."""
        due = [slot.next_start for slot in self._slots if slot.exit_code is None and slot.connection is None]
        if self._kill_at is not None:
            due.append(self._kill_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _start_preload(self) -> None:
        """Start the pod's own preload process, in the agent's process group."""
        assert self._folder is not None
        self._socket = str(self._folder.path / "preload.sock")
        self._preload = subprocess.Popen(
            [sys.executable, "-P", "-m", "frostline_trainer.process.preload", self._socket], env=self._env
        )

    def _has_lost_preload(self) -> bool:
        """Whether the pod's own preload process has ended by itself, so that no worker can be started any more."""
        if self._preload is None or self._kill_at is not None or (code := self._preload.poll()) is None:
            return False
        say(f"the preload process ended with code {code}, so the pod ends and has to be started again")
        return True

    def _serve_health(self) -> None:
        if self._health_port:
            from frostline_trainer.process.pod_health import serve_pod_health  # imported here: only pods of a cluster have probes

            self._health = serve_pod_health(self._env.get("FROSTLINE_BIND_HOST", ""), self._health_port, self._not_joined)

    def _not_joined(self) -> list[int]:
        """Local ranks whose worker has not joined; called by the threads that answer probes.

        A worker that has ended for good is not waited for: the kubelet would end the pod, and with it the others that train.
        Where all have ended, the agent ends too, and none of them counts as joined.
        """
        going_on = [slot for slot in self._slots if slot.exit_code is None] or self._slots
        return [slot.local_rank for slot in going_on if (file := slot.joined) is None or not file.exists()]

    def _end(self) -> None:
        """Close the connections, which kills the workers that still run."""
        if self._health is not None:
            self._health.shutdown()
            self._health.server_close()
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.close()
        if self._preload is not None:
            self._preload.terminate()
            self._preload.wait()
        if self._folder is not None:
            self._folder.close()


def _terminate(process_id: int) -> None:
    """Send SIGTERM to a worker. It may have ended: its parent, the preload process, sends the exit code a moment later."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGTERM)


def say(text: str) -> None:
    """Log one line on standard error, with time and pod."""
    pod = os.environ.get("FROSTLINE_POD_NAME", "")
    # One write, since the pod's workers write to the same file, and print writes the line's end separately.
    sys.stderr.write(f"time={time.strftime('%H:%M:%S')} agent pod={pod} {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Run the agent of this process's environment. Returns the pod's exit status."""
    return Agent(dict(os.environ)).run()


if __name__ == "__main__":
    sys.exit(main())
