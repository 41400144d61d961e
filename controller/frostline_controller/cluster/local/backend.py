"""The API server of the local cluster: one JSON file, replaced atomically under a lock, so that any process may use it."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from frostline_contract.durable_files import replace_durably
from frostline_controller.cluster.backend import ClusterState, PodInfo, require_annotations, require_replicas

LOCK_SECONDS = 5.0
"""The longest wait of a writer for another one, in seconds: far longer than a write takes."""
LOCK_RETRY_SECONDS = 0.005
EMPTY: dict[str, Any] = {
    "metadata": {"resource_version": 0, "annotations": {}},
    "spec": {"replicas": 0, "deletions": [], "breakages": []},
    "status": {"pods": []},
}


class LocalBackend:
    """ClusterBackend over `<folder>/statefulset.json` and `<folder>/events.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._folder / "statefulset.json"
        self._seen: tuple[int, int, int] | None = None
        self._object: dict[str, Any] = EMPTY
        self._read: tuple[int, int, int] | None = None

    def read(self) -> ClusterState:
        found = self.read_object()
        self._read = self._seen
        return ClusterState(
            annotations=dict(found["metadata"]["annotations"]),
            spec_replicas=found["spec"]["replicas"],
            resource_version=found["metadata"]["resource_version"],
            pods=[PodInfo(**pod) for pod in found["status"]["pods"]],
        )

    def patch_annotations(self, changes: dict[str, str | None], test: dict[str, str | None]) -> None:
        def patch(found: dict[str, Any]) -> None:
            annotations = found["metadata"]["annotations"]
            require_annotations(annotations, test)
            for key, value in changes.items():
                if value is None:
                    annotations.pop(key, None)
                else:
                    annotations[key] = value

        self.change(patch)

    def scale(self, replicas: int, test: int | None = None) -> None:
        if replicas < 0:
            raise ValueError(f"replicas is {replicas}; it must be at least 0")

        def scale(found: dict[str, Any]) -> None:
            require_replicas(found["spec"]["replicas"], test)
            found["spec"].update(replicas=replicas)

        self.change(scale)

    def delete_pod(self, name: str, grace_seconds: float) -> None:
        def ask(found: dict[str, Any]) -> None:
            uid = next((pod["uid"] for pod in found["status"]["pods"] if pod["name"] == name), "")
            found["spec"]["deletions"].append({"name": name, "uid": uid, "grace_seconds": grace_seconds})

        self.change(ask)

    def break_machine(self, kind: str, pod: str, seconds: float) -> None:
        """Ask the local cluster for a planned fault of a node or service (`cluster.py`).

        Args:
            kind: as in `Breakable.break_machine`.
            pod: a pod on the node; empty for a service.
            seconds: how long a node is cut off.
        """
        asked = {"kind": kind, "pod": pod, "seconds": seconds}
        self.change(lambda found: found["spec"].setdefault("breakages", []).append(asked))

    def changed(self) -> bool:
        return self._stamp() != self._read

    def emit_event(self, kind: str, reason: str, message: str) -> None:
        line = {"time_seconds": time.time(), "kind": kind, "reason": reason, "message": message}
        with open(self._folder / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read_object(self) -> dict[str, Any]:
        """Return the whole object; the file is parsed again only when it was replaced. Callers do not change the object."""
        stamp = self._stamp()
        if stamp is None:
            return EMPTY
        if stamp != self._seen:
            self._object = self._parse()
            self._seen = stamp
        return self._object

    def _parse(self) -> dict[str, Any]:
        """Return the object in the file.

        Raises ValueError where the file is damaged; each write of the file is complete, so damage comes from outside.
        """
        try:
            found: dict[str, Any] = json.loads(self._file.read_bytes())
            if not all(isinstance(value, str) for value in found["metadata"]["annotations"].values()):
                raise TypeError("an annotation is no text")
            int(found["metadata"]["resource_version"]), int(found["spec"]["replicas"]), len(found["spec"]["deletions"])
            for pod in found["status"]["pods"]:
                PodInfo(**pod)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{self._file}: is damaged ({error!r}); restore it from a copy: the run's state is in it") from None
        return found

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return a value that differs whenever the file was replaced; None before the file exists."""
        try:
            status = os.stat(self._file)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def change(self, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Apply `edit` to the object under the lock, durably. If `edit` raises, nothing changes."""
        with self._locked():
            found = self._parse() if self._file.exists() else json.loads(json.dumps(EMPTY))
            edit(found)
            found["metadata"]["resource_version"] += 1
            replace_durably(self._file, json.dumps(found))
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the object.

        Raises OSError where another process does not release the lock within LOCK_SECONDS, for example one that was stopped in
        the middle of a write. A process that waited without limit could not be stopped either.
        """
        file = self._folder / "statefulset.lock"
        with open(file, "a") as lock:
            deadline = time.monotonic() + LOCK_SECONDS
            while not _is_taken(lock):
                if time.monotonic() > deadline:
                    raise OSError(errno.EAGAIN, f"another process has held it for {LOCK_SECONDS:g} s", str(file))
                time.sleep(LOCK_RETRY_SECONDS)
            yield


def _is_taken(lock: IO[str]) -> bool:
    """Take a lock if no other process has it. True where it was taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
