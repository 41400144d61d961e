"""A pod's containers as local processes: environment, volumes, signals. What a kubelet and its container runtime do, for tests.

There is no mount namespace: a volume is a folder, and its mount path is replaced by that folder wherever it stands in a command, an
argument or a variable. So a chart that is tried here names every mounted path in one of these.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass
class Surroundings:
    """What containers of a node find: programs on `path`, variables of the node, and how objects are read.

    read(kind, name): a ConfigMap or Secret of the pod's namespace. token(audience, seconds): of the pod's service account.
    """

    path: str
    variables: dict[str, str]
    read: Callable[[str, str], Json]
    token: Callable[[str, int], str]


@dataclass
class Container:
    """One container of a pod. folder: its own; log: where its output goes."""

    pod: Json
    spec: Json
    folder: Path
    around: Surroundings
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started_at: str = ""
    last_exit: int | None = None
    volumes: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec["name"]

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Raises OSError where the program cannot be started."""
        self.folder.mkdir(parents=True, exist_ok=True)
        variables = self.environment()
        words = [self._local(self._expanded(word, variables)) for word in (*self.spec.get("command", ()), *self.spec.get("args", ()))]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                words, env=variables, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def environment(self) -> dict[str, str]:
        """PATH, HOME and the node's variables, then the container's own, in order."""
        variables = {"PATH": self.around.path, "HOME": str(self.folder), **self.around.variables}
        for entry in self.spec.get("env", ()):
            value = self._referred(entry["valueFrom"]) if "valueFrom" in entry else entry.get("value", "")
            variables[entry["name"]] = self._local(self._expanded(value, variables))
        return variables

    def signal(self, number: int) -> None:
        """To the container's first process, as a kubelet does."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)

    def signal_all(self, number: int) -> None:
        """To all of its processes: what ends a container, or freezes its node."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass

    def end(self) -> None:
        """SIGKILL for all that is left of it."""
        self.signal_all(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def _local(self, text: str) -> str:
        """Mount paths become the volumes' folders; the longest first, since one may lie below another."""
        mounts = sorted(self.spec.get("volumeMounts", ()), key=lambda mount: -len(mount["mountPath"]))
        for mount in mounts:
            folder = self.volumes[mount["name"]] / mount.get("subPath", "")
            text = text.replace(mount["mountPath"], str(folder).rstrip("/"))
        return text

    @staticmethod
    def _expanded(text: str, variables: dict[str, str]) -> str:
        return REFERENCE.sub(lambda found: variables.get(found[1], found[0]), text)

    def _referred(self, source: Json) -> str:
        if "fieldRef" in source:
            return field_of(self.pod, source["fieldRef"]["fieldPath"])
        kind = "configmaps" if "configMapKeyRef" in source else "secrets"
        reference = source.get("configMapKeyRef") or source["secretKeyRef"]
        return str(self.around.read(kind, reference["name"])[reference["key"]])


def field_of(pod: Json, path: str) -> str:
    """A field of the downward API."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return pod["metadata"].get(found[1], {}).get(found[2], "")
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, {})
    return str(value or "")


def prepare_volumes(pod: Json, folder: Path, around: Surroundings) -> dict[str, Path]:
    """A folder for each volume, with the files of ConfigMaps, Secrets and projections. Claims share one folder a name."""
    made = {}
    for volume in pod["spec"].get("volumes", ()):
        place = folder / "volumes" / volume["name"]
        if claim := volume.get("persistentVolumeClaim"):
            place = folder.parents[1] / "claims" / claim["claimName"]
        place.mkdir(parents=True, exist_ok=True)
        sources = volume.get("projected", {}).get("sources", [volume])
        for source in sources:
            for name, text in _files(source, pod, around).items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(text)
        made[volume["name"]] = place
    return made


def _files(source: Json, pod: Json, around: Surroundings) -> dict[str, str]:
    """Of one source of a volume: path -> content."""
    if token := source.get("serviceAccountToken"):
        return {token["path"]: around.token(token.get("audience", ""), token.get("expirationSeconds", 3600))}
    if downward := source.get("downwardAPI"):
        return {item["path"]: field_of(pod, item["fieldRef"]["fieldPath"]) for item in downward.get("items", ())}
    for key, kind, named in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
        if held := source.get(key):
            content = around.read(kind, held.get(named) or held["name"])
            items = held.get("items") or [{"key": name, "path": name} for name in content]
            return {item["path"]: str(content[item["key"]]) for item in items if item["key"] in content}
    return {}
