"""The preload process: it imports torch and the models once and forks workers, so that a worker starts in tens of milliseconds.

    python -m frostline_trainer.process.preload SOCKET

Protocol, over a UNIX socket, one connection a worker, JSON lines: the agent sends {"env": {...}, "log": path}; the answer is
{"pid": n} and, when the worker has ended, {"exit": code} (a negative signal number if a signal killed it). Closing the
connection kills the worker. This process starts no threads and opens no channels, so that a fork is a clean copy.

If a worker was killed or has crashed, the exit reporter (exit_reporter.py) reports it to the controller at once, so that no
recovery waits for that process. The preload process sees its end before the agent or the kubelet does.
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType

from frostline_contract.exit_codes import FAULT, FINAL

WORKER_MODULE = "frostline_trainer.process.worker"
PR_SET_PDEATHSIG = 1
REQUEST_BYTES_MAX = 1 << 20


def warm_up() -> None:
    """Import the modules that workers of the run in FROSTLINE_RUN_DIR need; without that variable, those of any run.

    FROSTLINE_WORKER_MODULE names another worker's module, with its own imports.
    """
    gc.disable()  # collections over hundreds of thousands of permanent objects would take a tenth of the time
    module = os.environ.get("FROSTLINE_WORKER_MODULE", WORKER_MODULE)
    if module == WORKER_MODULE:
        import torch

        torch.set_num_threads(1)
        importlib.import_module("frostline_trainer.process.warming").import_for(os.environ.get("FROSTLINE_RUN_DIR", ""))
    importlib.import_module(module)
    exit_reporter()
    check_untouched()
    gc.freeze()  # keeps memory pages shared with workers, and a worker's collections cheap
    gc.enable()


def check_untouched(descriptors: Path = Path("/proc/self/fd")) -> None:
    """Raise RuntimeError if an import has opened a GPU: forks of this process could not use CUDA then.

    Args:
        descriptors: folder with a link for each open file.
    """
    opened = {os.readlink(link) for link in descriptors.iterdir() if link.is_symlink()}
    if gpus := sorted(name for name in opened if name.startswith("/dev/nvidia")):
        raise RuntimeError(
            f"the preload process has opened {', '.join(gpus)} while it imported: no worker that it forks could use a GPU; "
            "whatever it imports (plugins of the run, torch's own start) must leave CUDA alone"
        )


@dataclass
class _Child:
    """A connection, and the worker that was requested over it.

    Attributes:
        process_id: the worker's; 0 before the fork.
        env: the worker's environment.
    """

    connection: socket.socket
    received: bytes = b""
    process_id: int = 0
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Preload:
    """The preload process's server on one socket.

    Attributes:
        path: of the socket.
        children: the workers that live, by process id.
        reporter: process id of the exit reporter; 0 before the first worker.
        reporter_pipe: this process's end of the reporter's pipe; -1 before the first worker.
    """

    path: Path
    children: dict[int, _Child] = field(default_factory=dict)
    reporter: int = 0
    reporter_pipe: int = -1

    def serve(self) -> None:
        """Listen on the socket, fork a worker for each connection, and report exit statuses, until SIGTERM."""
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.listen(256)
        self._wake, wake_end = socket.socketpair()
        for end in (self._wake, wake_end):
            end.setblocking(False)
        self._wake_end = wake_end
        signal.set_wakeup_fd(wake_end.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        self._stopped = False
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        while not self._stopped:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, _Child(connection))
                elif key.fileobj is self._wake:
                    self._wake.recv(4096)
                else:
                    self._read(key.data)
            self._reap()
        for process_id in (*self.children, *([self.reporter] if self.reporter else [])):
            os.kill(process_id, signal.SIGKILL)
        self.path.unlink(missing_ok=True)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True

    def _read(self, child: _Child) -> None:
        """Read a request, or the end of the connection, which kills the worker."""
        try:
            data = child.connection.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._close(child)
            if child.process_id in self.children:
                os.kill(child.process_id, signal.SIGKILL)
            return
        child.received += data
        if len(child.received) > REQUEST_BYTES_MAX:
            self._close(child)
        elif b"\n" in child.received and not child.process_id:
            self._fork(child)

    def _fork(self, child: _Child) -> None:
        try:
            request = json.loads(child.received)
            env, log = {str(key): str(value) for key, value in request["env"].items()}, str(request["log"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"a request was refused: {error}", file=sys.stderr)
            self._close(child)
            return
        process_id = self._fork_into(env, log, run_worker)
        child.process_id, child.env = process_id, env
        self.children[process_id] = child
        self._send(child, {"pid": process_id})
        self._report_exit(child, None)

    def _fork_into(self, env: dict[str, str], log: str | None, body: Callable[[], int]) -> int:
        """Fork, and return the child's process id. The child closes the preload process's files, runs `body` and exits.

        Args:
            env: the child's environment.
            log: file of the child's output; None: this process's own output.
            body: returns the child's exit status.
        """
        process_id = os.fork()
        if process_id != 0:
            return process_id
        code = FAULT
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._selector.close()
            self._wake_end.close()
            if self.reporter_pipe >= 0:
                os.close(self.reporter_pipe)
            if sys.platform.startswith("linux"):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if log is not None:
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.close(output)
            os.environ.clear()
            os.environ.update(env)
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Report every worker that has ended, to the agent and the exit reporter."""
        if self.reporter and os.waitpid(self.reporter, os.WNOHANG)[0]:
            os.close(self.reporter_pipe)
            self.reporter, self.reporter_pipe = 0, -1
        for process_id in list(self.children):
            found, status = os.waitpid(process_id, os.WNOHANG)
            if found:
                child, code = self.children.pop(process_id), os.waitstatus_to_exitcode(status)
                if code not in FINAL:
                    self._report_exit(child, code)
                self._send(child, {"exit": code})
                self._close(child)

    def _report_exit(self, child: _Child, code: int | None) -> None:
        """Tell the exit reporter that a worker has started (None), so that it can connect, or its exit code."""
        line = exit_reporter().line_of(child.env, code)
        if not line:
            return
        if not self.reporter:
            receiving, sending = os.pipe()
            self.reporter = self._fork_into(dict(os.environ), None, partial(self._become_reporter, receiving, sending))
            self.reporter_pipe = sending
            os.set_blocking(sending, False)
            os.close(receiving)
        try:
            os.write(self.reporter_pipe, line)
        except OSError as error:  # the exit reporter has died or is stuck: the pod's status shows the end later
            print(f"the end of {child.process_id} could not be handed on: {error}", file=sys.stderr)

    def _become_reporter(self, receiving: int, sending: int) -> int:
        os.close(sending)
        return exit_reporter().serve(receiving)

    def _send(self, child: _Child, message: dict[str, int]) -> None:
        try:
            child.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:  # the agent is gone: the next read sees the end of its connection
            print(f"{message} could not be told: {error}", file=sys.stderr)

    def _close(self, child: _Child) -> None:
        if child.connection.fileno() >= 0:
            self._selector.unregister(child.connection)
            child.connection.close()


def exit_reporter() -> ModuleType:
    """The exit reporter's module, imported late, so that importing this module stays cheap."""
    return importlib.import_module("frostline_trainer.process.exit_reporter")


def run_worker() -> int:
    """The worker's main; its exit code."""
    module = importlib.import_module(os.environ.get("FROSTLINE_WORKER_MODULE", WORKER_MODULE))
    try:
        return int(module.main())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else FAULT


def main(argv: list[str] | None = None) -> int:
    """Import what workers need, then serve. Returns the exit status: 2 for wrong arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m frostline_trainer.process.preload SOCKET", file=sys.stderr)
        return 2
    warm_up()
    Preload(Path(arguments[0])).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
