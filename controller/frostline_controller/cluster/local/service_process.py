"""The other processes of the local cluster (controller, cache server, preload), kept alive like the pods of a Deployment."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from frostline_contract.backoff import Backoff
from frostline_controller.cluster.local.child import python_module
from frostline_controller.cluster.local.supervised import SupervisedChild

log = logging.getLogger(__name__)

RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX = 0.1, 10.0
QUICK_ENDS_MAX = 8
"""The number of early ends in a row after which a needed service is given up: within half a minute."""


@dataclass(frozen=True)
class Service:
    """A program to keep running.

    Attributes:
        first_arguments: arguments of the first start only.
        final_codes: exit codes after which the program stays down.
        needed: whether the run cannot go on without the program. Then the program is given up after repeated early ends; other
            services are restarted for ever.
    """

    name: str
    argv: tuple[str, ...]
    first_arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    final_codes: frozenset[int] = frozenset({0, 2})
    needed: bool = True


def controller_service(run_dir: Path, replay: Path | None = None, said_once: tuple[str, ...] = ()) -> Service:
    """Return the controller as a service; the successor of a killed one has a new incarnation.

    Args:
        run_dir: the run directory.
        replay: a run directory whose decisions are followed; None: there is none.
        said_once: arguments of the first start only, for example --resume.
    """
    argv = [*python_module("frostline_controller"), "--run-dir", str(run_dir)]
    if replay is not None:
        argv += ["--replay", str(replay)]
    return Service("controller", tuple(argv), said_once, final_codes=frozenset({0, 2, 4}))


def cache_service(
    run_dir: Path, shards: list[str], memory_bytes: int | None = None, password: str = "", shared: bool = False
) -> Service:
    """Return the cache server as a service. A run goes on without it: the server's failure means no cache.

    Args:
        run_dir: the run directory, or the folder of a shared cache.
        shards: host:port of each Redis server.
        memory_bytes: limit of all shards together; None: the shards' own.
        password: of the Redis servers; empty: none.
        shared: whether several runs use the server, at the same time or one after the other.
    """
    argv = [*python_module("frostline_cache_server"), "--run-dir", str(run_dir), "--shards", ",".join(shards)]
    if memory_bytes is not None:
        argv += ["--memory-bytes", str(memory_bytes)]
    if shared:
        argv.append("--shared")
    env = {"FROSTLINE_REDIS_PASSWORD": password} if password else {}
    return Service("cache-server", tuple(argv), env=env, needed=False)


def preload_service(socket: str, run_dir: Path | None = None) -> Service:
    """Return the warm process that forks workers as a service.

    Args:
        socket: path of the socket at which workers are requested.
        run_dir: the run of the workers; None: several runs.
    """
    env = {"FROSTLINE_RUN_DIR": str(run_dir)} if run_dir is not None else {}
    return Service("preload", (*python_module("frostline_trainer.process.preload"), socket), env=env)


class ServiceProcess:
    """A service that is restarted whenever it dies, after a longer wait for each early end in a row.

    Args:
        service: the program.
        env: environment of the process; the service's own variables replace those of the same name.
        logs: folder of the log, which is named after the service.
        folder: working directory of the process.
        say: receives the messages for the user.
    """

    def __init__(self, service: Service, env: dict[str, str], logs: Path, folder: Path, say: Callable[[str], None]) -> None:
        self.service = service
        self._say = say
        self.log = logs / f"{service.name}.log"
        backoff = Backoff(RESTART_SECONDS_FIRST, RESTART_SECONDS_MAX)
        self._child = SupervisedChild({**env, **service.env}, self.log, folder, backoff)
        self._starts = 0
        self.final_code: int | None = None
        self.given_up = False

    @property
    def process_id(self) -> int | None:
        """The process id of the present process; None between two processes."""
        return self._child.process_id

    @property
    def starts(self) -> int:
        """The number of times that the service was started."""
        return self._starts

    def advance(self, restart: bool = True) -> None:
        """Handle the end of the process where it has ended, and start the next process where that is due.

        Args:
            restart: whether a next process may be started; not while the cluster ends.
        """
        code = self._child.take_end()
        if code is not None:
            if code in self.service.final_codes:
                self.final_code = code
                log.info("service ended service=%s code=%s", self.service.name, code)
                if code != 0 and not self.service.needed:
                    self._say(f"{self.service.name} ended with code {code}; the run goes on without it, see {self.log}")
            else:
                self._note_death(code)
        if self.final_code is None and restart:
            first = self.service.first_arguments if self._starts == 0 else ()
            self._starts += self._child.start_if_due([*self.service.argv, *first])

    def _note_death(self, code: int) -> None:
        wait = self._child.wait_after_failure()
        quick_ends = self._child.backoff.failures
        log.warning("service died service=%s code=%s restart_in=%.1f", self.service.name, code, wait)
        if self.service.needed and quick_ends >= QUICK_ENDS_MAX:
            self.final_code, self.given_up = code, True
        elif quick_ends > 1:
            times = f"{quick_ends} times in a row, the last time after {self._child.lived_seconds:.1f} s"
            self._say(f"{self.service.name} ended with code {code}, {times}; it is started again, see {self.log}")

    def terminate(self, number: int) -> None:
        """Send a signal to the process, where it runs."""
        self._child.signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the process and its children; `advance` starts it again."""
        self._child.kill()

    def wait(self, seconds: float, still_waiting: Callable[[], bool] = lambda: True) -> None:
        """Wait for the end of the process, at most `seconds`, then kill all that is left."""
        self._child.end_within(seconds, still_waiting)
