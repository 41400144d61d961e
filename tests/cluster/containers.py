"""A container as a local process: arguments, variables, signals and end. A replacement of the container runtime, for tests.

There is no mount namespace: a volume is a folder, and its mount path is replaced by that folder wherever a path in a command, an
argument or a variable begins with it. So a chart that is tested here has to name every mounted path in one of these.
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.cluster.api import Json
from tests.cluster.volumes import Sources, Unsupported, field_of

REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
FIELDS = {"name", "image", "imagePullPolicy", "command", "args", "env", "envFrom", "ports", "resources", "volumeMounts",
          "securityContext", "startupProbe", "readinessProbe", "livenessProbe", "terminationMessagePath",
          "terminationMessagePolicy", "workingDir", "resizePolicy"}  # fmt: skip
"""Fields of a container that test nodes know, if only to let them pass."""


@dataclass(frozen=True)
class Surroundings:
    """The environment of a pod's containers: variables (of the node and of Services), volumes' folders, folder of the logs.

    mark: of the pod's processes (`processes`).
    """

    variables: dict[str, str]
    volumes: dict[str, Path]
    folder: Path
    mark: str


class Process:
    """One start of one container. log: the file with all its output.

    Raises OSError where its program cannot be started, Unsupported, Refused for missing variables.
    """

    def __init__(self, spec: Json, sources: Sources, around: Surroundings, start_number: int) -> None:
        if unknown := spec.keys() - FIELDS:
            raise Unsupported(f"container {spec['name']}: test nodes have no {', '.join(sorted(unknown))}")
        self._mounts = _Mounts(spec, around.volumes)
        self.mark = f"{around.mark}/{spec['name']}"
        self.folder = around.folder / spec["name"]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = log_of(around.folder, spec["name"], start_number)
        self.variables = self._environment(spec, sources, around)
        where = self._mounts.local(spec["workingDir"]) if spec.get("workingDir") else self.folder
        words = self.words((*spec.get("command", ()), *spec.get("args", ())))
        if not spec.get("command"):
            raise Unsupported(f"container {spec['name']}: test nodes have no images, so a command must be given")
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                words,
                env=self.variables,
                cwd=where,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def words(self, words: tuple[str, ...]) -> list[str]:
        """Return a command with mount paths and variables replaced, also for commands that run in the container later."""
        return [expanded(self._mounts.local(word), self.variables) for word in words]

    def exit_code(self) -> int | None:
        """Return the exit code, 128 + n where signal n ended the process; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def ask_to_end(self) -> None:
        """Send SIGTERM to the container's first process."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Send SIGKILL to all its processes; also by session, since Redis overwrites the environment that has the mark."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        processes.signal_marked(self.mark, signal.SIGKILL)
        self._process.wait()

    def _environment(self, spec: Json, sources: Sources, around: Surroundings) -> dict[str, str]:
        """Return HOME, the surroundings' variables, then the container's own, in order."""
        variables = {"HOME": str(self.folder), **around.variables, processes.VARIABLE: self.mark}
        if temporary := self._mounts.folders.get("/tmp"):
            variables["TMPDIR"] = str(temporary)
        for entry in spec.get("envFrom", ()):
            kind, held = ("configmaps", entry["configMapRef"]) if "configMapRef" in entry else ("secrets", entry["secretRef"])
            content = sources.content(kind, held["name"], held.get("optional", False))
            variables |= {entry.get("prefix", "") + key: value.decode() for key, value in content.items()}
        for entry in spec.get("env", ()):
            if "valueFrom" not in entry:
                variables[entry["name"]] = expanded(self._mounts.local(entry.get("value", "")), variables)
            elif (value := _referred(entry["valueFrom"], sources)) is not None:
                variables[entry["name"]] = value
        return variables


class _Mounts:
    """Mount paths of a container, with the folders that replace them."""

    def __init__(self, spec: Json, volumes: dict[str, Path]) -> None:
        self.folders: dict[str, Path] = {}
        for mount in spec.get("volumeMounts", ()):
            folder = volumes[mount["name"]] / mount.get("subPath", "")
            if not folder.exists():
                folder.mkdir(parents=True)
            self.folders[mount["mountPath"].rstrip("/")] = folder
        # The longest first, since one may lie below another; and all at once, since a folder may lie below a mount path.
        paths = "|".join(re.escape(path) for path in sorted(self.folders, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![\w./-])({paths})(?![\w.-])") if paths else None

    def local(self, text: str) -> str:
        return self._pattern.sub(lambda found: str(self.folders[found[1]]), text) if self._pattern else text


def expanded(text: str, variables: dict[str, str]) -> str:
    """Replace $(NAME) by its value, where there is one; $$ is a dollar."""
    return REFERENCE.sub(lambda found: "$" if found[1] == "$" else variables.get(found[2], found[0]), text)


def log_of(folder: Path, container: str, start_number: int) -> Path:
    """Return the log of a start of a container. start_number: 0 for its first start."""
    return folder / f"{container}.{start_number}.log"


def _referred(source: Json, sources: Sources) -> str | None:
    """Return the value of a reference; None where it is missing and optional."""
    if reference := source.get("fieldRef"):
        return field_of(sources.pod, reference["fieldPath"])
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference := source.get(key):
            value = sources.content(kind, reference["name"], reference.get("optional", False)).get(reference["key"])
            if value is None and not reference.get("optional", False):
                raise Unsupported(f"{kind} {reference['name']} has no key {reference['key']}")
            return None if value is None else value.decode()
    raise Unsupported(f"test nodes make no variables of {', '.join(source)}")
