"""The local cluster's other processes (controller, cache server, preload): kept alive like pods of a Deployment."""

import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from frostline_controller.cluster.child import kill_group, python_module, signal_child, start_child

log = logging.getLogger(__name__)

RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX, HEALTHY_SECONDS = 0.1, 10.0, 30.0
QUICK_ENDS_MAX = 8
"""So often in a row a service may end before it has lived for HEALTHY_SECONDS; then it is given up: within half a minute."""


@dataclass(frozen=True)
class Service:
    """A program to keep running. first_arguments: of its first start only. final_codes: exit codes after which it stays down.

    needed: the run cannot go on without it, so it is given up where it ends again and again; another is tried for ever.
    """

    name: str
    argv: tuple[str, ...]
    first_arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    final_codes: frozenset[int] = frozenset({0, 2})
    needed: bool = True


def controller_service(run_dir: Path, replay: Path | None = None, said_once: tuple[str, ...] = ()) -> Service:
    """The controller; a successor of a killed one has a new incarnation. said_once: arguments of the first, e.g. --resume."""
    argv = [*python_module("frostline_controller"), "--run-dir", str(run_dir)]
    if replay is not None:
        argv += ["--replay", str(replay)]
    return Service("controller", tuple(argv), said_once, final_codes=frozenset({0, 2, 4}))


def cache_service(run_dir: Path, shards: list[str], memory_bytes: int | None = None, password: str = "") -> Service:
    """The cache server for Redis servers at host:port. The run goes on without it: every failure of it reads as no cache."""
    argv = [*python_module("frostline_cache_server"), "--run-dir", str(run_dir), "--shards", ",".join(shards)]
    if memory_bytes is not None:
        argv += ["--memory-bytes", str(memory_bytes)]
    env = {"FROSTLINE_REDIS_PASSWORD": password} if password else {}
    return Service("cache-server", tuple(argv), env=env, needed=False)


class ServiceProcess:
    """Starts a service, and again whenever it dies, later each time it does so soon. `say` is told what a user should know."""

    def __init__(self, service: Service, env: dict[str, str], logs: Path, folder: Path, say: Callable[[str], None]) -> None:
        self.service = service
        self._env = {**env, **service.env}
        self._folder, self._say = folder, say
        self.log = logs / f"{service.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._next_start = 0.0
        self._starts = 0
        self._quick_ends = 0
        self.final_code: int | None = None
        self.given_up = False

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def starts(self) -> int:
        return self._starts

    def advance(self, restart: bool = True) -> None:
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            kill_group(self._process)
            self._process = None
            if code in self.service.final_codes:
                self.final_code = code
                log.info("service ended service=%s code=%s", self.service.name, code)
                if code != 0 and not self.service.needed:
                    self._say(f"{self.service.name} ended with code {code}; the run goes on without it, see {self.log}")
            else:
                self._note_death(code, now)
        if self._process is None and self.final_code is None and restart and now >= self._next_start:
            first = self.service.first_arguments if self._starts == 0 else ()
            self._process = start_child([*self.service.argv, *first], self._env, self.log, self._folder)
            self._started, self._starts = now, self._starts + 1

    def _note_death(self, code: int, now: float) -> None:
        lived = now - self._started
        self._quick_ends = 0 if lived > HEALTHY_SECONDS else self._quick_ends + 1
        wait = min(RESTART_SECONDS_MAX, RESTART_SECONDS_FIRST * 2 ** max(0, self._quick_ends - 1))
        self._next_start = now + wait
        log.warning("service died service=%s code=%s restart_in=%.1f", self.service.name, code, wait)
        if self.service.needed and self._quick_ends >= QUICK_ENDS_MAX:
            self.final_code, self.given_up = code, True
        elif self._quick_ends > 1:
            times = f"{self._quick_ends} times in a row, the last time after {lived:.1f} s"
            self._say(f"{self.service.name} ended with code {code}, {times}; it is started again, see {self.log}")

    def terminate(self, number: int) -> None:
        if self._process is not None:
            signal_child(self._process, number)

    def kill(self) -> None:
        """SIGKILL to all of it; `advance` starts it again."""
        if self._process is not None:
            kill_group(self._process)

    def wait(self, seconds: float, still_waiting: Callable[[], bool] = lambda: True) -> None:
        """Wait for its end, at most so long, then kill what is left."""
        deadline = time.monotonic() + seconds
        while self.process_id is not None and time.monotonic() < deadline and still_waiting():
            time.sleep(0.02)
        if self._process is not None:
            kill_group(self._process)
            self._process = None
