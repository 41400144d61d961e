"""Carries out a case's acts from outside, each when the run has recorded its step, and records them."""

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from frostline_contract.annotations import COMMAND
from frostline_contract.durable_files import replace_durably
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.local_run.exit_codes import DONE, NO_RUN, USER_MISTAKE
from tests.chaos.acts import COMMANDS, OTHER_DATA, OTHER_WEIGHTS, SCALE, SECOND_OWNER, SIZES, STOPS, WRITES, Act
from tests.chaos.leftovers import processes_of
from tests.chaos.plug.run_files import now_in
from tests.e2e.runs import FROSTLINE, Running

POLL_SECONDS = 0.05
ANSWER_SECONDS = 60.0
"""The longest time in which another `frostline` command answers, in seconds."""
CORPUS = "corpus.txt"
DRAINS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MODEL, OTHER_MODEL = "model", "other"
"""Folders of a model, and of another one of the same architecture."""
WEIGHTS = "model.safetensors"
MODULES = {
    "hold_controller": "frostline_controller",
    "hold_cache_server": "frostline_cache_server",
    "hold_redis": "redis-server",
    "kill_shard": "redis-server",
    "hold_agent": "frostline_trainer.process.agent",
    "kill_agent": "frostline_trainer.process.agent",
    "kill_preload": "frostline_trainer.process.preload",
    "hold_preload": "frostline_trainer.process.preload",
}


class Actor:
    """The acts still to come, in order. `follow` a `frostline` until it ends; the remaining acts are for the next, resumed
    one."""

    def __init__(self, acts: Sequence[Act], folder: Path) -> None:
        """Make the actor of a case.

        folder: of the case, with its corpus; records of acts go to `acts` in it, planted writes to `writes`.
        """
        self._to_come = list(enumerate(sorted(acts, key=lambda act: act.step)))
        self._corpus, self._folder = folder / CORPUS, folder
        self.reported, self.writes = folder / "acts", folder / "writes"
        for made in (self.reported, self.writes):
            made.mkdir(parents=True)
        self.stops = 0

    def follow(self, running: Running, env: dict[str, str]) -> threading.Thread:
        """Act on this process in a thread, which ends with the process. env: of other commands on its run."""
        self._env = env
        (self.writes / "owner").write_text(str(running.process.pid))
        thread = threading.Thread(target=self._act_on, args=(running,))
        thread.start()
        return thread

    def spoilt(self) -> bool:
        """Whether a planted write has hit the run."""
        return any(self.writes.glob("*.[0-9]*"))

    def _act_on(self, running: Running) -> None:
        while self._to_come and running.process.poll() is None:
            index, act = self._to_come[0]
            if running.step >= act.step and (act.kind != "drain" or _handles_signals(running)):
                del self._to_come[0]
                self._do(index, act, running)
                if act.kind in STOPS:
                    return
            time.sleep(POLL_SECONDS)

    def _do(self, index: int, act: Act, running: Running) -> None:
        targets = self._targets(act, running)
        if act.kind in MODULES and not targets:
            return  # the process is being replaced
        said = {"index": index, "pods": _pods_of(act, targets, running), "step": running.step, "time_seconds": time.time()}
        said |= now_in(running.folder)
        (self.reported / f"{index}.json").write_text(json.dumps(said))
        if act.kind == SECOND_OWNER:
            self._own_as_second(index, running)
        elif act.kind == "reshape":
            self._reshape(index, act, running)
        elif act.kind == SCALE:
            self._scale(index, act, said, running)
        elif act.kind in COMMANDS:
            LocalBackend(running.folder / "cluster").patch_annotations({COMMAND: _words(act)}, {})
        elif act.kind == "drain":
            running.process.send_signal(DRAINS[act.value])
        elif act.kind == "kill_all":
            running.process.kill()
        elif act.kind in WRITES or act.kind == "kill_write":
            how = act.kind.removesuffix("_write")
            write = {"match": act.file, "at": act.at, "how": how, "times": act.times, "seconds": act.seconds}
            draft = self.writes / f"{index}.draft"
            draft.write_text(json.dumps(write))
            draft.rename(self.writes / f"{index}.json")
        elif act.kind == OTHER_DATA:
            own = self._corpus.read_text()
            replace_durably(self._corpus, own[: len(own) // 2])
            time.sleep(act.seconds)
            replace_durably(self._corpus, own)
        elif act.kind == OTHER_WEIGHTS:
            own = self._folder / f"own-{WEIGHTS}"
            shutil.copy(self._folder / MODEL / WEIGHTS, own)
            self._load(self._folder / OTHER_MODEL / WEIGHTS)
            time.sleep(act.seconds)
            self._load(own)
        elif act.kind.startswith("kill"):
            targets[0].kill()
        else:
            _hold(targets, act.seconds)

    def _own_as_second(self, index: int, running: Running) -> None:
        """Resume the run beside its owner, which must be refused. An owner whose run ends meanwhile proves nothing."""
        code, said = self._ask("resume", str(running.folder), "--quiet", "--no-report")
        refused = code == USER_MISTAKE and ("is running" in said or "has completed" in said)
        if running.process.poll() is None and not refused:
            self._complain(index, f"a second owner ended with {code}: {said}")

    def _reshape(self, index: int, act: Act, running: Running) -> None:
        """Ask for another shape. It may be refused, no controller may live, or the run may have ended: all are answers."""
        pp, dp = act.shape
        code, said = self._ask("reshape", str(running.folder), "--pp", str(pp), "--dp", str(dp))
        if (code not in (DONE, USER_MISTAKE, NO_RUN) and "the run is completed" not in said) or "Traceback" in said:
            self._complain(index, f"a reshape to {pp}x{dp} ended with {code}: {said}")

    def _scale(self, index: int, act: Act, said: dict[str, Any], running: Running) -> None:
        """Write another number of pods, and record the number that it replaces: the same one is no request."""
        backend, replaced = LocalBackend(running.folder / "cluster"), []

        def scale(found: dict[str, Any]) -> None:
            replaced.append(found["spec"]["replicas"])
            found["spec"]["replicas"] = act.value

        backend.change(scale)
        (self.reported / f"{index}.json").write_text(json.dumps({**said, "replaced": replaced[0]}))

    def _ask(self, *words: str) -> tuple[int, str]:
        """Return the exit status and the end of the output of a `frostline` command; -1 where it does not answer."""
        together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        try:
            asked = subprocess.run(
                [*FROSTLINE, *words], env=self._env, timeout=ANSWER_SECONDS, text=True, check=False, **together
            )
        except subprocess.TimeoutExpired:
            return -1, f"no answer within {ANSWER_SECONDS:g} s"
        return asked.returncode, asked.stdout.strip()[-300:]

    def _complain(self, index: int, text: str) -> None:
        (self.reported / f"{index}.wrong").write_text(text)

    def _load(self, weights: Path) -> None:
        """Make these the model's weights; a process that has the old file open keeps it."""
        draft = self._folder / f"draft-{WEIGHTS}"
        shutil.copy(weights, draft)
        draft.rename(self._folder / MODEL / WEIGHTS)

    def _targets(self, act: Act, running: Running) -> list[psutil.Process]:
        if act.kind == "hold_all":
            return processes_of(running.folder)
        if act.kind not in MODULES:
            return []
        found = []
        for child in psutil.Process(running.process.pid).children(recursive=True):
            try:
                words, pod = " ".join(child.cmdline()).split(), child.environ().get("FROSTLINE_POD_NAME", "")
            except psutil.NoSuchProcess:
                continue
            named = any(word.endswith(MODULES[act.kind]) for word in words)
            if named and (not act.kind.endswith("agent") or pod == f"trainer-{act.worker}"):
                found.append(child)
        if act.kind in ("hold_redis", "kill_shard"):
            return found and [found[act.worker % len(found)]]
        # A worker is a fork of the preload process, and has its command line.
        return found[:1] if act.kind == "hold_preload" else found


def _handles_signals(running: Running) -> bool:
    """Whether the command has installed its signal handlers: while it imports its modules, a signal ends it as any program."""
    try:
        status = Path(f"/proc/{running.process.pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _words(act: Act) -> str:
    return f"{act.kind} {act.value}" if act.kind in ("freeze", "resize") else act.kind


def _pods_of(act: Act, targets: Sequence[psutil.Process], running: Running) -> list[str]:
    """Return the uids of the pods whose workers an act ends."""
    if act.kind == "kill_agent":
        return [targets[0].environ()["FROSTLINE_POD_UID"]]
    if act.kind not in ("kill_preload", *SIZES):
        return []
    pods = LocalBackend(running.folder / "cluster").read().pods
    return [pod.uid for pod in pods if act.kind == "kill_preload" or pod.ordinal >= act.value]


def _hold(targets: list[psutil.Process], seconds: float) -> None:
    """Stop all targets within milliseconds, and continue them together after `seconds`."""
    for number, pause in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
        for target in targets:
            try:
                target.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        time.sleep(pause)


def done(folder: Path, acts: Sequence[Act]) -> list[tuple[Act, dict[str, Any]]]:
    """Return the acts that were carried out in `folder`; of planted writes, those that hit a write."""
    order = sorted(acts, key=lambda act: act.step)
    found = []
    for file in sorted((folder / "acts").glob("*.json")):
        said = json.loads(file.read_text())
        act = order[said["index"]]
        if act.file:
            claims = sorted((folder / "writes").glob(f"{said['index']}.[0-9]*"))
            if not claims:
                continue
            claim = json.loads(claims[0].read_text())
            said |= {name: claim[name] for name in ("time_seconds", "plans_bytes", "generation")}
        found.append((act, said))
    return found


def complaints_of(folder: Path) -> list[str]:
    """Return the answers to acts in `folder` that were wrong."""
    return [file.read_text() for file in sorted((folder / "acts").glob("*.wrong"))]
